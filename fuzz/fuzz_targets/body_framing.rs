//! Body framing: the same end and the same verdict however the bytes are cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::mphttp::http::{BodyLength, BodyReader};

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (kind, step, bytes) = input;
    let length = match kind % 4 {
        0 => BodyLength::Exact(u64::from(kind)),
        1 => BodyLength::UntilClose,
        _ => BodyLength::Chunked,
    };
    let mut whole = BodyReader::new(length);
    let once = whole.handle_bytes(bytes);

    let mut cut = BodyReader::new(length);
    let mut used = 0;
    let twice = bytes.chunks(usize::from(step).max(1)).try_for_each(|piece| {
        if !cut.is_complete() {
            used += cut.handle_bytes(piece)?;
        }
        Ok(())
    });
    assert_eq!(once, twice.map(|()| used));
    if let Ok(used) = once {
        assert_eq!(whole.is_complete(), cut.is_complete());
        assert!(used == bytes.len() || whole.is_complete());
        assert_eq!(whole.handle_close(), cut.handle_close());
    }
});
