//! The walls between the packages, as ARCHITECTURE.md draws them. Each failure says why the wall stands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A file that is longer holds more than one thing.
const MOST_LINES: usize = 1000;

/// What stands on one side of a wall.
struct Package {
    name: &'static str,
    directory: &'static str,
    /// Packages of this workspace that it may use.
    may_use: &'static [&'static str],
    others: Others,
}

/// What a package may use from elsewhere.
enum Others {
    /// These only.
    Only { libraries: &'static [&'static str], because: &'static str },
    /// All but these, each with the reason.
    AllBut(&'static [(&'static str, &'static str)]),
}

const NO_RUNTIME_BELOW_ENGINE: &str =
    "the runtime is the engine's: below it everything is called, never awaited";
const KERNEL_STOPS_AT_EDGE: &str = "kernel facts stop at edge and become typed values there";
const NO_REAL_TIME: &str = "runs on virtual time: no runtime, no socket";
const SHIPPED_BINARIES: &str = "the lab measures the binaries that are shipped, never their insides";

const PACKAGES: &[Package] = &[
    Package {
        name: "multiway-core",
        directory: "core",
        may_use: &[],
        others: Others::Only {
            libraries: &["bytes", "httparse", "httpdate", "serde", "serde_json", "thiserror", "toml"],
            because: "the core decides and never acts, so it may use only what computes: no socket, clock, \
                      thread, runtime, randomness or OS call. A library that only computes may be added here",
        },
    },
    Package {
        name: "multiway-edge",
        directory: "edge/linux",
        may_use: &["multiway-core"],
        others: Others::AllBut(&[("tokio", NO_RUNTIME_BELOW_ENGINE), ("hyper", NO_RUNTIME_BELOW_ENGINE)]),
    },
    Package {
        name: "multiway-api",
        directory: "api",
        may_use: &[],
        others: Others::Only {
            libraries: &["serde", "serde_json", "utoipa"],
            because: "the schema is read by everyone, so it brings nothing but itself",
        },
    },
    Package {
        name: "multiway-engine",
        directory: "engine",
        may_use: &["multiway-core", "multiway-edge", "multiway-api"],
        others: Others::AllBut(&[
            ("libc", KERNEL_STOPS_AT_EDGE),
            ("nix", KERNEL_STOPS_AT_EDGE),
            ("rtnetlink", KERNEL_STOPS_AT_EDGE),
            ("netlink-sys", KERNEL_STOPS_AT_EDGE),
            ("netlink-packet-route", KERNEL_STOPS_AT_EDGE),
            ("zbus", KERNEL_STOPS_AT_EDGE),
            ("clap", "arguments are the command line's"),
        ]),
    },
    Package {
        name: "multiway",
        directory: "cli",
        may_use: &["multiway-api", "multiway-engine"],
        others: Others::AllBut(&[
            ("rusqlite", "history is the engine's"),
            ("rustls", "connections are the engine's"),
            ("netlink-sys", KERNEL_STOPS_AT_EDGE),
            ("rtnetlink", KERNEL_STOPS_AT_EDGE),
        ]),
    },
    Package {
        name: "multiway-linksim",
        directory: "lab/linksim",
        may_use: &["multiway-core"],
        others: Others::AllBut(&[
            ("tokio", NO_REAL_TIME),
            ("libc", NO_REAL_TIME),
            ("nix", NO_REAL_TIME),
            ("socket2", NO_REAL_TIME),
        ]),
    },
    Package {
        name: "multiway-simtest",
        directory: "lab/simtest",
        may_use: &["multiway-core", "multiway-linksim"],
        others: Others::AllBut(&[
            ("tokio", NO_REAL_TIME),
            ("libc", NO_REAL_TIME),
            ("nix", NO_REAL_TIME),
            ("socket2", NO_REAL_TIME),
        ]),
    },
    Package {
        name: "multiway-netlab",
        directory: "lab/netlab",
        may_use: &["multiway-core", "multiway-linksim", "multiway-api"],
        others: Others::AllBut(&[]),
    },
    Package {
        name: "multiway-repro",
        directory: "lab/repro",
        may_use: &["multiway-core", "multiway-linksim", "multiway-netlab", "multiway-api"],
        others: Others::AllBut(&[("nix", "privileged code is in edge and netlab only")]),
    },
];

/// Something that code in some places must not say.
struct Ban {
    /// Directories it holds in, as beginnings of paths.
    within: &'static [&'static str],
    pattern: &'static str,
    because: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        within: &["core/", "lab/linksim/src/"],
        pattern: "Instant::now",
        because: "time comes in as an argument, so that a simulation can make it",
    },
    Ban {
        within: &["core/", "lab/linksim/src/"],
        pattern: "SystemTime::now",
        because: "time comes in as an argument, so that a simulation can make it",
    },
    Ban { within: &["core/src/"], pattern: "std::thread", because: "the core has no threads" },
    Ban { within: &["core/src/"], pattern: "std::fs", because: "files belong to the engine" },
    Ban { within: &["core/src/"], pattern: "std::env", because: "configuration is an argument" },
    Ban { within: &["core/src/"], pattern: "TcpStream", because: "sockets belong to edge" },
    Ban { within: &["core/src/"], pattern: "TcpListener", because: "sockets belong to edge" },
    Ban { within: &["core/src/"], pattern: "UdpSocket", because: "sockets belong to edge" },
    Ban {
        within: &["core/src/"],
        pattern: "async fn",
        because: "the core is a state machine that is called, never awaited",
    },
    Ban {
        within: &["core/src/", "engine/src/", "edge/", "cli/src/", "api/src/"],
        pattern: "clippy::all",
        because: "a lint is excused one at a time, with a reason",
    },
];

/// Where code may be `unsafe`.
const UNSAFE_PLACES: &[&str] = &["edge/linux/src/", "lab/netlab/src/"];

/// Of the core, labs on the real kernel share quantities only.
const SHARED_WITH_LABS: &[&str] = &["units", "paths::PathKind"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace exists")
}

fn read_toml(file: &Path) -> toml::Table {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Dependencies of the package itself, for all targets; what only its tests use is not part of it.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut add = |table: &toml::Table| {
        for kind in ["dependencies", "build-dependencies"] {
            let found = table.get(kind).and_then(toml::Value::as_table);
            names.extend(found.into_iter().flat_map(|found| found.keys().cloned()));
        }
    };
    add(manifest);
    for target in
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values)
    {
        target.as_table().into_iter().for_each(&mut add);
    }
    names
}

fn is_ours(name: &str) -> bool {
    name == "multiway" || name.starts_with("multiway-")
}

/// Every Rust file of the workspace's packages, with its path from the root and its text.
fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten().map(|entry| entry.path()) {
            if entry.is_dir() {
                walk(&entry, root, found);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let name = entry.strip_prefix(root).expect("found below the root").display().to_string();
                let text = fs::read_to_string(&entry).unwrap_or_else(|error| panic!("{name}: {error}"));
                found.push((name, text));
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    for package in PACKAGES {
        for part in ["src", "tests", "benches", "examples"] {
            walk(&root.join(package.directory).join(part), &root, &mut found);
        }
    }
    assert!(found.len() > PACKAGES.len(), "the sources are where the table says");
    found
}

/// Lines of code with their numbers; comments may name what code may not.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn begins_with_any(path: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| path.starts_with(beginning))
}

fn fail_with(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_package_has_its_place_between_the_walls() {
    let workspace = read_toml(&root().join("Cargo.toml"));
    let members: BTreeSet<&str> = workspace["workspace"]["members"]
        .as_array()
        .expect("members are a list")
        .iter()
        .filter_map(toml::Value::as_str)
        .collect();
    let known: BTreeSet<&str> = PACKAGES.iter().map(|package| package.directory).collect();
    assert_eq!(members, known, "a new package is a new wall: say in PACKAGES what it may use, and why");
}

#[test]
fn packages_use_only_what_their_walls_let_through() {
    let mut faults = Vec::new();
    for package in PACKAGES {
        let file = format!("{}/Cargo.toml", package.directory);
        let manifest = read_toml(&root().join(&file));
        assert_eq!(manifest["package"]["name"].as_str(), Some(package.name), "{file}");
        for dependency in dependencies(&manifest) {
            if is_ours(&dependency) {
                if !package.may_use.contains(&dependency.as_str()) {
                    faults.push(format!(
                        "{file}: {} may use of this workspace only [{}], not {dependency}. {}",
                        package.name,
                        package.may_use.join(", "),
                        if package.directory.starts_with("lab/") {
                            SHIPPED_BINARIES
                        } else {
                            "See ARCHITECTURE.md"
                        }
                    ));
                }
                continue;
            }
            match package.others {
                Others::Only { libraries, because } => {
                    if !libraries.contains(&dependency.as_str()) {
                        faults.push(format!("{file}: {} may not use {dependency}: {because}", package.name));
                    }
                }
                Others::AllBut(banned) => {
                    if let Some((_, because)) = banned.iter().find(|(name, _)| *name == dependency) {
                        faults.push(format!("{file}: {} may not use {dependency}: {because}", package.name));
                    }
                }
            }
        }
    }
    fail_with(faults);
}

#[test]
fn the_core_reaches_no_runtime_and_no_system_through_others() {
    let lock = read_toml(&root().join("Cargo.lock"));
    let packages = lock["package"].as_array().expect("packages are a list");
    // The lock file names a dependency by name, or by name and version when there are several.
    let mut by_name: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().expect("names are text");
        let uses = package.get("dependencies").and_then(toml::Value::as_array).into_iter().flatten();
        let uses = uses.filter_map(toml::Value::as_str).filter_map(|text| text.split(' ').next());
        by_name.entry(name).or_default().extend(uses);
    }
    let manifest = read_toml(&root().join("core/Cargo.toml"));
    let mut waiting: Vec<String> = dependencies(&manifest).into_iter().collect();
    let mut reached = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        if reached.insert(name.clone()) {
            waiting.extend(by_name.get(name.as_str()).into_iter().flatten().map(|&name| name.to_owned()));
        }
    }
    for banned in ["tokio", "mio", "libc", "nix", "rustix", "socket2", "rand", "getrandom"] {
        assert!(
            !reached.contains(banned),
            "a library of multiway-core brings {banned} with it: the core must stay pure to run on virtual time"
        );
    }
}

#[test]
fn code_says_nothing_that_its_place_forbids() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        for ban in BANS {
            if !begins_with_any(&file, ban.within) {
                continue;
            }
            for (number, line) in code(&text) {
                if line.contains(ban.pattern) {
                    faults.push(format!("{file}:{number}: no `{}` here: {}", ban.pattern, ban.because));
                }
            }
        }
    }
    fail_with(faults);
}

#[test]
fn unsafe_code_stays_where_the_kernel_is_met() {
    let mut faults = Vec::new();
    let is_unsafe = |line: &str| {
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.any(|word| word == "unsafe" || word == "unsafe_code")
    };
    let this_test = file!().rsplit('/').next().expect("a file has a name");
    for (file, text) in sources() {
        if begins_with_any(&file, UNSAFE_PLACES) || file.ends_with(this_test) {
            continue;
        }
        for (number, _) in code(&text).filter(|(_, line)| is_unsafe(line)) {
            faults.push(format!(
                "{file}:{number}: unsafe code belongs to {}, where it can be read in one sitting",
                UNSAFE_PLACES.join(" and ")
            ));
        }
    }
    fail_with(faults);
}

#[test]
fn labs_share_nothing_of_the_core_but_quantities() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        if !begins_with_any(&file, &["lab/netlab/", "lab/repro/", "lab/linksim/src/"]) {
            continue;
        }
        for (number, line) in code(&text) {
            let used = line.split("multiway_core::").skip(1);
            for used in used.filter(|used| !begins_with_any(used, SHARED_WITH_LABS)) {
                faults.push(format!("{file}:{number}: `multiway_core::{used}`: {SHIPPED_BINARIES}"));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn packages_obey_the_lints_of_the_workspace() {
    for package in PACKAGES {
        let manifest = read_toml(&root().join(package.directory).join("Cargo.toml"));
        let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(
            inherits,
            Some(&toml::Value::Boolean(true)),
            "{}: lints are the workspace's, so that no package has laxer ones",
            package.name
        );
    }
}

#[test]
fn files_are_short_enough_to_hold_one_thing() {
    let mut faults = Vec::new();
    for (file, text) in sources() {
        let lines = text.lines().count();
        if lines > MOST_LINES {
            faults.push(format!(
                "{file} has {lines} lines; above {MOST_LINES} a file holds more than one thing"
            ));
        }
    }
    fail_with(faults);
}
