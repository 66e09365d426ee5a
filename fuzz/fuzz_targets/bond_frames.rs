//! Frames of the relay's protocol: the same however the bytes are cut, and the same when written again.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use multiway_core::bond::wire::{Frame, FrameReader, MAX_BODY, WireError};

/// All frames of `bytes`, handed in by pieces of `piece`, and how it ended.
fn read(bytes: &Bytes, piece: usize) -> (Vec<Frame>, Result<usize, WireError>) {
    let mut reader = FrameReader::new();
    let mut frames = Vec::new();
    for start in (0..bytes.len()).step_by(piece) {
        reader.handle_bytes(bytes.slice(start..bytes.len().min(start + piece)));
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(reader.next_frame(), Err(error));
                    return (frames, Err(error));
                }
            }
        }
        assert!(reader.held() <= MAX_BODY + 5);
    }
    (frames, Ok(reader.held()))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((piece, bytes)) = bytes.split_first() else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    let whole = read(&bytes, bytes.len().max(1));
    assert_eq!(read(&bytes, usize::from(*piece).max(1)), whole);

    let mut again = Vec::new();
    for frame in &whole.0 {
        frame.put(&mut again);
    }
    let again = Bytes::from(again);
    assert_eq!(read(&again, again.len().max(1)), (whole.0, Ok(0)));
});
