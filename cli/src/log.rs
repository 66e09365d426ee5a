//! What the engine logs, on the standard error stream.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Says what is logged, in the words of `tracing_subscriber::EnvFilter`.
const LOG_VARIABLE: &str = "MULTIWAY_LOG";

/// Starts logging what the environment asks for, or else `default`.
pub(crate) fn to_standard_error(default: &str) {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // The journal stamps lines itself.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().with_ansi(false).init();
    } else {
        lines.with_ansi(std::io::stderr().is_terminal()).init();
    }
}

/// The same as one JSON object per line.
pub(crate) fn json_to_standard_error(default: &str) {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
}
