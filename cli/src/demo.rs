//! `multiway demo`: the lab's demonstration, which is a program of its own.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exit::Exit;
use crate::failure::Failure;

/// The program that builds the lab's networks, measures and shows.
const LAB: &str = "multiway-repro";

/// Becomes the lab's program; only a failure comes back.
pub(crate) fn demo(arguments: &[OsString]) -> Result<Infallible, Failure> {
    let failed = |error| Failure::new(Exit::Other, format!("cannot start {LAB}: {error}"));
    let own = std::env::current_exe().map_err(failed)?;
    let lab = find(&own).ok_or_else(|| {
        let failure = Failure::new(Exit::Other, format!("{LAB} is neither beside multiway nor in PATH"));
        failure.help("It is part of the sources: `make demo` and `make demo-bond` build and run it.")
    })?;
    Err(failed(Command::new(lab).arg("--multiway").arg(own).arg("demo").args(arguments).exec()))
}

/// Beside this program, else where the shell would find it.
fn find(own: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = own.parent().map(Path::to_owned);
    beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|place| place.join(LAB))
        .find(|lab| lab.is_file())
}
