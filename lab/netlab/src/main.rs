//! `multiway-lab`: runs commands on the device of an emulated network.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use multiway_linksim::Scenario;
use multiway_netlab::{Network, NetworkOptions};
use nix::sys::signal::{SigSet, Signal};

/// Emulated networks on the real kernel, for one command at a time. Needs root; leaves nothing behind.
#[derive(Parser)]
#[command(name = "multiway-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a command on the scenario's device, with its servers up, and ends with the command's code.
    Shell {
        /// The scenario file (TOML); docs/lab.md lists its keys.
        scenario: PathBuf,
        /// Kernel Multipath TCP on the device and the servers; use `mptcpize run` for the command.
        #[arg(long)]
        mptcp: bool,
        /// The command; $SHELL when there is none.
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Reads a scenario file and says what it means, without building anything.
    Check {
        /// The scenario file (TOML).
        scenario: PathBuf,
    },
}

/// When the command cannot be run at all, as shells have it.
const EXIT_CANNOT_RUN: u8 = 126;

#[expect(clippy::print_stderr, reason = "a command-line program reports its failure there")]
fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("multiway-lab: {error:#}");
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command-line program")]
fn run(command: Command) -> Result<u8> {
    match command {
        Command::Check { scenario } => {
            print!("{}", Scenario::load(&scenario)?);
            Ok(0)
        }
        Command::Shell { scenario, mptcp, command } => {
            let scenario = Scenario::load(&scenario)?;
            // Ctrl-C is for the command; when that ends, so do we. Threads and commands started from
            // here on: threads inherit this, commands do not.
            SigSet::from_iter([Signal::SIGINT, Signal::SIGQUIT])
                .thread_block()
                .context("cannot leave Ctrl-C to the command")?;
            let options = NetworkOptions { mptcp, hold_schedule: true, ..NetworkOptions::default() };
            let network = Network::build_with(&scenario, &options)?;
            // On standard error, so that the command's output stays its own.
            eprint!("{}", Topology { scenario: &scenario, network: &network });
            network.start_schedule();
            shell(&network, command)
        }
    }
}

fn shell(network: &Network, mut words: Vec<String>) -> Result<u8> {
    if words.is_empty() {
        words.push(std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned()));
    }
    let (program, arguments) = words.split_first().expect("there is at least the shell");
    let mut command = network.device().command(program);
    let status = command.args(arguments).status().with_context(|| format!("cannot run {program}"))?;
    let code = match std::os::unix::process::ExitStatusExt::signal(&status) {
        // As shells have it.
        Some(signal) => 128 + signal,
        None => status.code().unwrap_or(1),
    };
    Ok(u8::try_from(code).unwrap_or(1))
}

/// What was built, for people.
struct Topology<'a> {
    scenario: &'a Scenario,
    network: &'a Network,
}

impl fmt::Display for Topology<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel: {}", self.scenario)?;
        writeln!(f, "addresses:")?;
        for path in self.network.paths() {
            writeln!(
                f,
                "  {:<8} {} {}, gateway and DNS {}",
                path.interface(),
                path.device_address(),
                path.device_address_v6(),
                path.gateway_address()
            )?;
        }
        for server in self.network.servers() {
            let spec = self.scenario.servers.iter().find(|spec| spec.name == server.name());
            write!(f, "  {:<8} {} {}", server.name(), server.address(), server.address_v6())?;
            for name in spec.into_iter().flat_map(|spec| &spec.dns_names) {
                write!(f, ", {name} ({})", server.public_address())?;
            }
            writeln!(f)?;
            for file in spec.into_iter().flat_map(|spec| &spec.files) {
                writeln!(f, "           {}", server.url(&file.name))?;
            }
        }
        Ok(())
    }
}
