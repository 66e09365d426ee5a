//! `multiway run`: one program under the daemon.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use multiway_api::{RUN_PATH, RunRequest, RunResponse};

use crate::args;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;

/// Variables that name the proxy; programs look at the lower-case ones, the upper-case ones, or both.
/// `HTTP_PROXY` is left out: CGI programs take it for a header of the client's (httpoxy).
const PROXY_VARIABLES: [&str; 3] = ["http_proxy", "https_proxy", "HTTPS_PROXY"];

/// What is reached without the proxy.
const NO_PROXY: &str = "localhost,127.0.0.0/8,::1";

/// Puts this process under the daemon and becomes the program; returns only to say why not.
pub(crate) fn run(args: &args::Run) -> Result<Infallible, Failure> {
    let (program, arguments) = args.command.split_first().expect("clap asks for one word at least");
    let name = program.to_string_lossy().into_owned();
    let answer = Client::new(&args.control).post(RUN_PATH, &RunRequest { program: name.clone() })?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let RunResponse::ProxyOnly { proxy, reason } = answer {
        announce(&format!(
            "multiway: connections cannot be intercepted ({reason}); {name} is told to use the proxy http://{proxy}"
        ));
        for variable in PROXY_VARIABLES {
            command.env(variable, format!("http://{proxy}"));
        }
        for variable in ["all_proxy", "ALL_PROXY"] {
            command.env(variable, format!("socks5h://{proxy}"));
        }
        for variable in ["no_proxy", "NO_PROXY"] {
            if std::env::var_os(variable).is_none() {
                command.env(variable, NO_PROXY);
            }
        }
    }
    let error = command.exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::NotFound, format!("there is no program {name}: {error}"))
        }
        _ => Failure::new(Exit::NotExecutable, format!("{name} cannot be executed: {error}")),
    })
}

#[expect(clippy::print_stderr, reason = "the program's own output stays untouched")]
fn announce(line: &str) {
    eprintln!("{line}");
}
