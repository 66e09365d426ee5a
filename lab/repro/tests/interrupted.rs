//! Whoever interrupts a bench or a demonstration finds nothing left of it: no file, no process and, with the
//! processes, no namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use multiway_netlab::{say_skipped, skip_without_lab};
use tempfile::TempDir;

/// Bound on everything that is waited for; a loaded machine takes a fraction of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A download that is far from done when it is interrupted.
const PLAN: &str = r#"
title = "Interrupted"
runs = 1
methods = ["tcp"]
single_path_limit_s = 100
limit_s = 100
cells = []
[quick]
runs = 1
[[quick.cells]]
wifi_rate = ["1 Mbit/s"]
lte_rate = ["1 Mbit/s"]
rtt = [["50 ms", "50 ms"]]
size = ["10 MB"]
"#;

/// A process's namespace, as `/proc/ID/ns/net` reads.
fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// The processes of these namespaces: their ids and names.
fn processes_in(namespaces: &[PathBuf]) -> Vec<(String, String)> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    ids.filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|id| namespace(id).is_some_and(|namespace| namespaces.contains(&namespace)))
        .filter_map(|id| {
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
            Some((id, name.trim().to_owned()))
        })
        .collect()
}

/// Adds the namespaces that a process's children and theirs are in.
fn collect_namespaces(process: &str, namespaces: &mut Vec<PathBuf>) {
    for task in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            namespaces.extend(namespace(child).filter(|namespace| !namespaces.contains(namespace)));
            collect_namespaces(child, namespaces);
        }
    }
}

/// Fails unless nothing is left of this program after a signal that came while these programs ran for it.
fn leaves_nothing(temporary: &Path, arguments: &[&str], programs: &[&str], signal: &str) -> Result<()> {
    let said = tempfile::NamedTempFile::new()?;
    let mut lab = Command::new(env!("CARGO_BIN_EXE_multiway-repro"))
        .args(arguments)
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(said.reopen()?)
        .spawn()?;
    let machine = namespace("self");
    let deadline = Instant::now() + PATIENCE;
    let mut namespaces = Vec::new();
    loop {
        collect_namespaces(&lab.id().to_string(), &mut namespaces);
        namespaces.retain(|namespace| Some(namespace) != machine.as_ref());
        let running = processes_in(&namespaces);
        if programs.iter().all(|program| running.iter().any(|(_, name)| name == program)) {
            break;
        }
        if lab.try_wait()?.is_some() {
            let said = std::fs::read_to_string(said.path())?;
            ensure!(said.contains("not installed: "), "it ended by itself: {said}");
            say_skipped(said.trim());
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "there are only {running:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let signalled = Command::new("kill").args(["-s", signal, &lab.id().to_string()]).status()?;
    ensure!(signalled.success());
    lab.wait()?;
    let files = || std::fs::read_dir(temporary).map(|entries| entries.flatten().collect::<Vec<_>>());
    while !processes_in(&namespaces).is_empty() || !files()?.is_empty() {
        let late = Instant::now() >= deadline;
        ensure!(!late, "after {signal} there are {:?} and {:?}", processes_in(&namespaces), files()?);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn an_interrupted_bench_leaves_nothing() -> Result<()> {
    skip_without_lab!();
    let (plans, temporary) = (TempDir::new()?, TempDir::new()?);
    let plan = plans.path().join("plan.toml");
    std::fs::write(&plan, PLAN)?;
    let plan = plan.display().to_string();
    // It takes no part in what is measured.
    let arguments = ["--multiway", "/bin/true", "bench", "grid", "--quick", "--scenario", &plan];
    for signal in ["INT", "TERM", "KILL"] {
        leaves_nothing(temporary.path(), &arguments, &["nginx", "curl"], signal)?;
    }
    Ok(())
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() -> Result<()> {
    skip_without_lab!();
    let temporary = TempDir::new()?;
    let arguments = ["--multiway", "/bin/true", "demo", "bond", "--method", "tcp"];
    for signal in ["INT", "TERM"] {
        leaves_nothing(temporary.path(), &arguments, &["nginx", "sshd", "ssh", "curl"], signal)?;
    }
    Ok(())
}
