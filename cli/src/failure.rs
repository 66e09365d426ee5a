//! What went wrong, for a person: one message, where, and what to do about it.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, MietteHandlerOpts, NamedSource, SourceSpan};
use thiserror::Error;

use crate::exit::Exit;

/// The end of a command that failed; boxed, since results carry it about.
#[derive(Debug)]
pub(crate) struct Failure(Box<Details>);

#[derive(Debug, Error, Diagnostic)]
#[error("{message}")]
struct Details {
    message: String,
    exit: Exit,
    #[help]
    help: Option<String>,
    #[source_code]
    text: Option<NamedSource<String>>,
    #[label("here")]
    span: Option<SourceSpan>,
}

impl Failure {
    /// A failure that ends with `exit` and says `message`.
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self(Box::new(Details { message: message.to_string(), exit, help: None, text: None, span: None }))
    }

    /// Says what to do about it.
    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Shows where in `text`, the content of the file `name`, the fault is.
    #[must_use]
    pub(crate) fn at(mut self, name: impl AsRef<str>, text: String, span: Range<usize>) -> Self {
        self.0.text = Some(NamedSource::new(name, text));
        self.0.span = Some(span.into());
        self
    }

    /// Prints it to the standard error stream and gives the code to end with.
    #[expect(clippy::print_stderr, reason = "this is where errors are shown to the user")]
    pub(crate) fn report(self) -> Exit {
        let exit = self.0.exit;
        eprintln!("{:?}", miette::Report::from(*self.0));
        exit
    }
}

/// Sets how failures look: no line is broken, so that scripts can search for messages.
pub(crate) fn install_handler() {
    miette::set_hook(Box::new(|_| {
        Box::new(MietteHandlerOpts::new().wrap_lines(false).break_words(false).context_lines(1).build())
    }))
    .expect("it is set once, at the start");
}
