//! Writing to the standard output, which may be closed or full.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// Whether anyone read what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// As far as can be known.
    Yes,
    /// The other end of the pipe is closed; writing more is of no use.
    ReaderGone,
}

/// Writes `text` at once.
pub(crate) fn text(text: &str) -> Result<Written, Failure> {
    let mut stdout = io::stdout().lock();
    check(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Writes `value` as JSON for people.
pub(crate) fn json_pretty(value: &impl Serialize) -> Result<Written, Failure> {
    write(serde_json::to_string_pretty(value))
}

/// Writes `value` as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<Written, Failure> {
    write(serde_json::to_string(value))
}

fn write(json: serde_json::Result<String>) -> Result<Written, Failure> {
    let mut json = json.map_err(|error| Failure::new(Exit::Other, format!("cannot write JSON: {error}")))?;
    json.push('\n');
    text(&json)
}

/// A reader that has gone away, as `head` does, is no failure worth a message.
fn check(result: io::Result<()>) -> Result<Written, Failure> {
    match result {
        Ok(()) => Ok(Written::Yes),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(error) => Err(Failure::new(Exit::Disk, format!("cannot write to the standard output: {error}"))),
    }
}
