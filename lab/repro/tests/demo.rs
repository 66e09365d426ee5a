//! The demonstration of the relay, by Multiway alone and with a small file: what its table says.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use multiway_netlab::{say_skipped, skip_without_lab};
use serde_json::Value;
use tempfile::TempDir;

/// The program that is shown, beside the one that shows it; built when it is not there yet.
fn multiway() -> Result<PathBuf> {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_multiway-repro")).with_file_name("multiway");
    if !binary.is_file() {
        let built = Command::new(env!("CARGO")).args(["build", "-p", "multiway"]).status()?;
        ensure!(built.success(), "cargo build -p multiway failed");
    }
    Ok(binary)
}

#[test]
fn ssh_a_radio_and_a_download_survive_what_happens_to_the_wifi() -> Result<()> {
    skip_without_lab!();
    let directory = TempDir::new()?;
    let json = directory.path().join("table.json");
    let output = Command::new(env!("CARGO_BIN_EXE_multiway-repro"))
        .arg("--multiway")
        .arg(multiway()?)
        .args(["demo", "bond", "--method", "multiway", "--size", "8", "--json"])
        .arg(&json)
        .output()?;
    let (shown, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    if said.contains("not installed: ") {
        say_skipped(said.trim());
        return Ok(());
    }
    ensure!(output.status.success(), "{shown}\n{said}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    let rows = rows.as_array().context("rows")?;
    ensure!(rows.len() == 1, "{rows:?}");
    let (row, seen) = (&rows[0], &rows[0]["seen"]);
    // Also of connections that went past the relay.
    ensure!(row["method"] == "multiway" && row["problems"] == Value::Array(Vec::new()), "{row}\n{shown}");
    ensure!(seen["keys"] == 125 && seen["missing_echoes"] == 0, "{row}\n{shown}");
    ensure!(seen["radio_broke"] == false, "{row}\n{shown}");
    ensure!(seen["downloaded_bytes"] == 8_000_000 && seen["sha256_is_right"] == true, "{row}\n{shown}");
    let line = shown.lines().find(|line| line.contains("│ Multiway, handover ")).unwrap_or_default();
    ensure!(line.contains(" right ") && !line.contains("never came"), "{shown}");
    Ok(())
}
