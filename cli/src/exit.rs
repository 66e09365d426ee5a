//! Exit codes: the command line's promise to scripts.

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Anything without a code of its own.
    Other,
    /// Wrong arguments, unknown interface, unreadable or wrong configuration.
    Usage,
    /// No path leads to the server.
    Unreachable,
    /// The server answered with an error status, or with a redirect that is not followed.
    HttpStatus,
    /// The bytes are not the right ones.
    Verification,
    /// The server could not prove who it is, or TLS failed.
    Tls,
    /// The file could not be written.
    Disk,
    /// The address or socket is taken.
    Busy,
    /// The kernel does not let this process do what was asked.
    Capability,
    /// No daemon answers on the control socket.
    NoDaemon,
    /// `multiway run` found the program and could not execute it.
    NotExecutable,
    /// `multiway run` did not find the program.
    NotFound,
    /// Stopped by SIGINT.
    Interrupted,
    /// Stopped by SIGTERM.
    Terminated,
}

/// Every code with its meaning, as shown by `--help` and in `docs/exit-codes.md`.
const TABLE: [(Option<Exit>, u8, &str); 15] = [
    (None, 0, "all went well"),
    (Some(Exit::Other), 1, "anything without a code of its own"),
    (Some(Exit::Usage), 2, "wrong arguments, unknown interface, unreadable or wrong configuration"),
    (Some(Exit::Unreachable), 3, "no path leads to the server"),
    (
        Some(Exit::HttpStatus),
        4,
        "the server answered with an error status, such as 404, or with a redirect that is not followed",
    ),
    (Some(Exit::Verification), 5, "verification failed: checksum, size or contents are not the right ones"),
    (Some(Exit::Tls), 6, "TLS failed, for instance on the server's certificate"),
    (Some(Exit::Disk), 7, "the file could not be written: disk full, or no permission"),
    (Some(Exit::Busy), 8, "the port or the control socket is taken"),
    (Some(Exit::Capability), 9, "a capability is missing"),
    (Some(Exit::NoDaemon), 10, "no daemon answers on the control socket"),
    (Some(Exit::NotExecutable), 126, "`run` found the program and could not execute it"),
    (Some(Exit::NotFound), 127, "`run` did not find the program"),
    (Some(Exit::Interrupted), 130, "interrupted (SIGINT)"),
    (Some(Exit::Terminated), 143, "terminated (SIGTERM)"),
];

impl Exit {
    /// The number given to the shell.
    pub(crate) fn code(self) -> u8 {
        let row = TABLE.iter().find(|(exit, ..)| *exit == Some(self));
        row.expect("the table has every exit, as a test asserts").1
    }
}

/// The epilogue of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (_, code, meaning) in TABLE {
        text.push_str(&format!("  {code:>3}  {meaning}\n"));
    }
    text.push_str("\n`multiway run` ends with the code of the program it ran.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_has_a_code_of_its_own() {
        use Exit::*;
        let all = [
            Other,
            Usage,
            Unreachable,
            HttpStatus,
            Verification,
            Tls,
            Disk,
            Busy,
            Capability,
            NoDaemon,
            NotExecutable,
            NotFound,
            Interrupted,
            Terminated,
        ];
        let codes: std::collections::BTreeSet<u8> = all.iter().map(|exit| exit.code()).collect();
        assert_eq!(codes.len(), TABLE.len() - 1);
        assert!(!codes.contains(&0));
    }

    #[test]
    fn the_published_table_is_the_one_in_the_code() {
        let published = include_str!("../../docs/exit-codes.md");
        let rows: Vec<String> =
            TABLE.iter().map(|(_, code, meaning)| format!("| {code} | {meaning} |")).collect();
        let listed: Vec<&str> = published
            .lines()
            .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
            .collect();
        assert_eq!(listed, rows, "docs/exit-codes.md is stale");
    }
}
