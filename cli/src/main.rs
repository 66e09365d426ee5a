//! The `multiway` command.

mod args;
mod client;
mod demo;
mod exit;
mod failure;
mod generate;
mod get;
mod join;
mod log;
mod output;
mod paths;
mod progress;
mod relay;
mod render;
mod run;
mod status;
mod units;
mod up;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    failure::install_handler();
    let result = match Cli::parse().command {
        // It reports by itself, once per URL.
        Command::Get(args) => get::get(args),
        Command::Up(args) => up::up(args).map_err(Failure::report),
        Command::Run(args) => run::run(&args).map(|never| match never {}).map_err(Failure::report),
        Command::Status(args) => status::status(&args).map_err(Failure::report),
        Command::Paths(args) => paths::paths(&args).map_err(Failure::report),
        Command::Join(args) => join::join(&args).map_err(Failure::report),
        Command::Relay(args) => relay::relay(args).map_err(Failure::report),
        Command::Demo { arguments } => {
            demo::demo(&arguments).map(|never| match never {}).map_err(Failure::report)
        }
        Command::Completions { shell } => generate::completions(shell).map_err(Failure::report),
        Command::Man { directory } => generate::manual(directory.as_deref()).map_err(Failure::report),
        Command::Reaper => up::reap().map_err(Failure::report),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => ExitCode::from(exit.code()),
    }
}
