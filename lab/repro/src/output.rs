//! Writing to the standard output, whose reader may have gone.

use std::io::{self, Write};

/// Writes a line, or several, at once.
pub(crate) fn line(text: &str) -> io::Result<()> {
    raw(&format!("{text}\n"))
}

/// Writes text as it is. A reader that went away (`| head`) has seen what it wanted.
pub(crate) fn raw(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
