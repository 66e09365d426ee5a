//! The scenario file: a device's networks, the servers beyond them, and what happens to them.
//!
//! One schema for virtual and real labs:
//!
//! ```toml
//! name = "Wi-Fi and LTE"
//! seed = 1
//! congestion_control = "cubic"
//!
//! [[path]]
//! interface = "wlan0"
//! kind = "wifi"
//! rate = "20 Mbit/s"            # both directions, unless one says otherwise
//! rtt = "30 ms"
//! down = { loss = "0.1%", queue = "2 BDP" }
//!
//! [[path.change]]
//! at = "700 ms"
//! blackhole = true
//!
//! [[path]]
//! interface = "wwan0"
//! kind = "cellular"
//! rate = "15 Mbit/s"
//! rtt = "60 ms"
//! nat = true
//!
//! [[server]]
//! name = "origin"
//! names = ["files.example"]
//! files = [{ name = "10MB.bin", size = "10 MB" }]
//! ```
//!
//! `docs/lab.md` lists every key.

mod schema;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};

use multiway_core::paths::PathKind;

use crate::config::{LinkConfig, LinkSpec};

/// A network to be built, virtual or real.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// For people.
    pub name: String,
    /// Seeds every link's generator and every file's content.
    pub seed: u64,
    /// The kernel's name of the congestion control that all hosts use.
    pub congestion_control: String,
    /// The device's networks; at least one.
    pub paths: Vec<PathSpec>,
    /// Servers beyond them; at least one.
    pub servers: Vec<ServerSpec>,
}

/// One of the device's networks.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSpec {
    /// The device's interface on it, for instance `wlan0`; also the path's name.
    pub interface: String,
    /// The sort of link.
    pub kind: PathKind,
    /// The metric of its default routes; the lowest is what unaware programs use.
    pub metric: u32,
    /// Whether the network translates the device's IPv4 address.
    pub nat: bool,
    /// The link, with its scheduled changes.
    pub link: LinkSpec,
}

/// A server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSpec {
    /// For people.
    pub name: String,
    /// Names under which the paths' DNS servers know it.
    pub dns_names: Vec<String>,
    /// Interfaces of the paths that reach it; all when empty.
    pub paths: Vec<String>,
    /// A link of its own between it and the networks; none means no delay.
    pub link: Option<LinkSpec>,
    /// Files it serves.
    pub files: Vec<FileSpec>,
}

/// A file that a server serves: seeded random bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Its name in the server's root.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What is wrong with a scenario file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// The file, when it came from one.
    pub file: Option<PathBuf>,
    /// Line and column, from 1.
    pub at: Option<(usize, usize)>,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => write!(f, "scenario")?,
        }
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Scenario {
    /// Reads a scenario file; traces it names are looked for beside it.
    pub fn load(file: &Path) -> Result<Self, ScenarioError> {
        let at_file = |error: ScenarioError| ScenarioError { file: Some(file.to_owned()), ..error };
        let text = std::fs::read_to_string(file)
            .map_err(|error| at_file(ScenarioError { file: None, at: None, message: error.to_string() }))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        Self::parse(&text, &|trace| std::fs::read_to_string(folder.join(trace))).map_err(at_file)
    }

    /// Reads a scenario's text; `read_trace` finds the traces it names.
    pub fn parse(
        text: &str,
        read_trace: &dyn Fn(&str) -> std::io::Result<String>,
    ) -> Result<Self, ScenarioError> {
        schema::parse(text, read_trace)
    }
}

/// The first path's default routes get this metric and each further one as much more.
pub(crate) const METRIC_STEP: u32 = 100;

/// What most servers on the Internet use, and Linux's own default.
pub(crate) const DEFAULT_CONGESTION_CONTROL: &str = "cubic";

/// A scenario's seed when it names none.
pub(crate) const DEFAULT_SEED: u64 = 1;

/// Scenarios in code read as prose too.
impl Scenario {
    /// One without paths and servers yet.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            seed: DEFAULT_SEED,
            congestion_control: DEFAULT_CONGESTION_CONTROL.to_owned(),
            paths: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// The same with one more path, preferred less than those before it.
    #[must_use]
    pub fn path(mut self, interface: &str, kind: PathKind, link: LinkSpec) -> Self {
        let metric =
            METRIC_STEP * (u32::try_from(self.paths.len()).unwrap_or(u32::MAX / METRIC_STEP - 1) + 1);
        self.paths.push(PathSpec { interface: interface.to_owned(), kind, metric, nat: false, link });
        self
    }

    /// The same with NAT on the last path.
    #[must_use]
    pub fn with_nat(mut self) -> Self {
        if let Some(path) = self.paths.last_mut() {
            path.nat = true;
        }
        self
    }

    /// The same with one more server.
    #[must_use]
    pub fn server(mut self, server: ServerSpec) -> Self {
        self.servers.push(server);
        self
    }

    /// The same with this seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl ServerSpec {
    /// A server without names and files that all paths reach.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            dns_names: Vec::new(),
            paths: Vec::new(),
            link: None,
            files: Vec::new(),
        }
    }

    /// The same, known to DNS by this name too.
    #[must_use]
    pub fn known_as(mut self, dns_name: &str) -> Self {
        self.dns_names.push(dns_name.to_owned());
        self
    }

    /// The same, reached by this path and others named so, and by no more.
    #[must_use]
    pub fn only_on(mut self, interface: &str) -> Self {
        self.paths.push(interface.to_owned());
        self
    }

    /// The same with a link of its own between it and the networks.
    #[must_use]
    pub fn behind(mut self, link: LinkSpec) -> Self {
        self.link = Some(link);
        self
    }

    /// The same with one more file.
    #[must_use]
    pub fn file(mut self, name: &str, bytes: u64) -> Self {
        self.files.push(FileSpec { name: name.to_owned(), bytes });
        self
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (seed {}, congestion control {})", self.name, self.seed, self.congestion_control)?;
        for path in &self.paths {
            let LinkSpec { up, down } = &path.link;
            write!(f, "  {:<8} {} down, {} up, ", path.interface, Summary(down), Summary(up))?;
            write!(f, "{} ms round trip", path.link.rtt().as_secs_f64() * 1e3)?;
            writeln!(f, "{}", if path.nat { ", NAT" } else { "" })?;
        }
        for server in &self.servers {
            let reach =
                if server.paths.is_empty() { "all paths".to_owned() } else { server.paths.join(", ") };
            write!(f, "  {:<8} on {reach}", server.name)?;
            if let Some(link) = &server.link {
                write!(f, ", {} ms further", link.rtt().as_secs_f64() * 1e3)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// One direction in a few words.
struct Summary<'a>(&'a LinkConfig);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.capacity.mean_rate() {
            Some(rate) => write!(f, "{} Mbit/s", rate.bits_per_second() as f64 / 1e6)?,
            None => write!(f, "unlimited")?,
        }
        let loss = self.0.loss.mean();
        if loss > 0.0 { write!(f, " ({}% loss)", loss * 100.0) } else { Ok(()) }
    }
}
