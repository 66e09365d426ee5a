//! `multiway-repro`: scenarios to tables. Measures the shipped `multiway` binary beside its peers over
//! emulated networks on the real kernel; nothing here knows its insides.

mod bench;
mod daemon;
mod demo;
mod measure;
mod method;
mod objects;
mod output;
mod plan;
mod radio;
mod reader;
mod relay;
mod report;
mod sessions;
mod stats;
mod table;
mod traffic;
mod webradio;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

/// Measures Multiway beside curl, aria2 and kernel MPTCP, and shows it at work.
#[derive(Debug, Parser)]
#[command(name = "multiway-repro", version, arg_required_else_help = true)]
struct Arguments {
    /// The multiway binary [default: the one beside this program]
    #[arg(long, value_name = "FILE", env = "MULTIWAY_BINARY", global = true)]
    multiway: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, side by side in one run
    Bench(bench::Options),
    /// Show measurements that were kept by `bench --json`
    Table {
        /// Files of measurements
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// One download over two networks, of which one fails in the middle and comes back; `bond` shows a relay
    Demo(demo::Options),
    /// A program that asks and answers like someone who speaks to a device
    #[command(hide = true)]
    Traffic(traffic::Options),
}

#[expect(clippy::print_stderr, reason = "a command-line program reports its failure there")]
fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("multiway-repro: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Bench(options) => {
            let binary = binary(arguments.multiway)?;
            require_lab()?;
            bench::run(&binary, &options)
        }
        Command::Table { files } => {
            for file in files {
                output::line(&table::render(&report::load(&file)?))?;
            }
            Ok(())
        }
        Command::Demo(options) => {
            let binary = binary(arguments.multiway)?;
            require_lab()?;
            demo::run(&binary, &options)
        }
        Command::Traffic(options) => traffic::run(&options),
    }
}

fn binary(given: Option<PathBuf>) -> Result<PathBuf> {
    let binary = match given {
        Some(binary) => binary,
        None => std::env::current_exe()?.with_file_name("multiway"),
    };
    // Programs on hosts of the lab start in other directories.
    binary.canonicalize().with_context(|| {
        format!(
            "there is no {}; build it (`cargo build --release`) or name it by --multiway",
            binary.display()
        )
    })
}

fn require_lab() -> Result<()> {
    match multiway_netlab::missing() {
        None => Ok(()),
        Some(reason) => bail!("no network lab can run here: {reason}"),
    }
}
