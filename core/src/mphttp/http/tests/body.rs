use super::*;

fn read(length: BodyLength, bytes: &[u8]) -> Result<(usize, bool), BodyError> {
    let mut reader = BodyReader::new(length);
    let used = reader.handle_bytes(bytes)?;
    Ok((used, reader.is_complete()))
}

#[test]
fn a_body_ends_where_its_framing_says() {
    assert_eq!(read(BodyLength::None, b"next"), Ok((0, true)));
    assert_eq!(read(BodyLength::Exact(0), b"next"), Ok((0, true)));
    assert_eq!(read(BodyLength::Exact(3), b"abcnext"), Ok((3, true)));
    assert_eq!(read(BodyLength::Exact(9), b"abc"), Ok((3, false)));
    assert_eq!(read(BodyLength::UntilClose, b"abc"), Ok((3, false)));
    let chunked = b"4;x=\"y\"\r\nab\r\n\r\n1f  \r\n0123456789012345678901234567890\r\n000\r\nT: 1\r\n\r\n";
    let mut bytes = chunked.to_vec();
    bytes.extend_from_slice(b"HTTP/1.1");
    assert_eq!(read(BodyLength::Chunked, &bytes), Ok((chunked.len(), true)));
}

#[test]
fn ambiguous_chunks_are_refused() {
    let refused = |bytes: &[u8]| read(BodyLength::Chunked, bytes).unwrap_err();
    assert_eq!(refused(b"\r\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"x\r\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"0x1\r\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"1\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"1;a\nb\r\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"1 1\r\n"), BodyError::ChunkSize);
    assert_eq!(refused(b"1\r\nab"), BodyError::ChunkEnd);
    assert_eq!(refused(b"1\r\na\n"), BodyError::ChunkEnd);
    assert_eq!(refused(b"10000000000000000\r\n"), BodyError::ChunkTooLarge);
    assert_eq!(refused(b"0\r\nA: 1\n\r\n"), BodyError::Trailers);
    assert_eq!(refused(b"0\r\n A: 1\r\n\r\n"), BodyError::Trailers);
    assert_eq!(refused(format!("1;{}", "x".repeat(5000)).as_bytes()), BodyError::SizeLineTooLong);
    assert_eq!(refused(format!("0\r\n{}", "A: 1\r\n".repeat(4000)).as_bytes()), BodyError::TrailersTooLarge);
}

#[test]
fn closing_ends_only_bodies_without_a_length() {
    let close = |length, bytes: &[u8]| {
        let mut reader = BodyReader::new(length);
        reader.handle_bytes(bytes).unwrap();
        reader.handle_close()
    };
    assert_eq!(close(BodyLength::UntilClose, b"abc"), Ok(()));
    assert_eq!(close(BodyLength::Exact(3), b"abc"), Ok(()));
    assert_eq!(close(BodyLength::Exact(4), b"abc"), Err(BodyError::Truncated));
    assert_eq!(close(BodyLength::Chunked, b"0\r\n"), Err(BodyError::Truncated));
}
