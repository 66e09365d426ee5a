//! What is generated from the definition of the command line: completions and manual pages.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Writes a completion script to the standard output.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "multiway", &mut script);
    output::text(&String::from_utf8_lossy(&script)).map(drop)
}

/// Writes a manual page for each command to `directory`, or the main one to the standard output.
pub(crate) fn manual(directory: Option<&Path>) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let Some(directory) = directory else {
        let page = page(&command).map_err(|error| cannot_write(Path::new("the page"), &error))?;
        return output::text(&String::from_utf8_lossy(&page)).map(drop);
    };
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    write_pages(&command, directory, "")
}

fn write_pages(command: &Command, directory: &Path, parent: &str) -> Result<(), Failure> {
    let name = if parent.is_empty() {
        command.get_name().to_owned()
    } else {
        format!("{parent}-{}", command.get_name())
    };
    let file = directory.join(format!("{name}.1"));
    let titled = command.clone().display_name(name.clone());
    page(&titled).and_then(|page| fs::write(&file, page)).map_err(|error| cannot_write(&file, &error))?;
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    shown.into_iter().try_for_each(|sub| write_pages(sub, directory, &name))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

fn cannot_write(file: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Disk, format!("cannot write {}: {error}", file.display()))
}
