//! The daemon: starts the parts, tells of them, and ends without leaving anything behind.

mod features;
mod interception;
mod listeners;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use multiway_api as api;
use multiway_api::{EventDetail, Listener, RunResponse, Status};
use multiway_core::paths::PathInfo;
use multiway_edge::accounts;
pub use multiway_edge::intercept::InterceptError;
use multiway_edge::reaper::reaper_main;
use multiway_edge::{limits, memory};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::JoinSet;

pub use self::features::FeaturesError;
use self::features::Reloader;
use self::interception::{BYPASS_MARK, Interception, Ports};
use self::listeners::Listeners;
use crate::config::Config;
use crate::context::{Context, Features};
use crate::control::{self, Access, AdoptError, Backend, Caller, ControlError, ControlSocket};
use crate::dns::{Resolver, SystemFiles, Upstreams};
use crate::flows::FlowTable;
use crate::journal::Journal;
use crate::paths::{PathTable, PathTableConfig, PathTableError};
use crate::proxy;
use crate::split::SharedBuffers;
use crate::survey::{path_status, state};

/// The port of DNS (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;

/// How often control groups are looked at. A group that stays a second longer costs nothing.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How long the ends of connections may take to reach their programs when the daemon stops.
const FLOWS_END_WITHIN: Duration = Duration::from_secs(1);

/// How often it is looked whether they did.
const FLOWS_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How often the memory that the daemon occupies is compared with what its transfers hold.
const MEMORY_INTERVAL: Duration = Duration::from_secs(5);

/// What it may occupy beyond that; giving back less is not worth the work.
const MEMORY_SLACK: u64 = 64 << 20;

/// Why a daemon does not run.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The address for the proxies, or a port on the loopback, is not to be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        error: io::Error,
    },
    /// There is no control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The paths are not known.
    #[error(transparent)]
    Paths(#[from] PathTableError),
    /// What is to be intercepted cannot be.
    #[error(transparent)]
    Intercept(#[from] InterceptError),
    /// The configuration names a user or group that is not there.
    #[error("there is no {kind} {name}")]
    UnknownAccount {
        /// `user` or `group`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The flow-feature database cannot be used.
    #[error(transparent)]
    Features(#[from] FeaturesError),
    /// A part of a running daemon failed.
    #[error("the {part} failed: {error}")]
    PartFailed {
        /// Which part.
        part: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// Runs a daemon until SIGTERM or SIGINT.
///
/// `reaper` makes the command that runs [`reap`] in a process of its own.
pub async fn run(config: Config, reaper: fn() -> Command) -> Result<(), DaemonError> {
    let failed = |error| DaemonError::PartFailed { part: "signal handling", error };
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(failed)?;
    match limits::raise_open_files() {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays as it is; many clients may reach it")
        }
    }
    let mut daemon = Daemon::start(config, reaper).await?;
    daemon.announce();
    let result = tokio::select! {
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
        failure = daemon.failure() => Err(failure),
    };
    tracing::info!("stopping");
    notify(&[sd_notify::NotifyState::Stopping]);
    daemon.stop().await;
    result
}

/// What the reaper process does: waits for the end of the daemon at the other end of the standard
/// input, then removes the control groups it left.
pub fn reap() -> io::Result<()> {
    reaper_main(io::stdin().lock())
}

/// A running daemon; everything ends when it is dropped, [`Self::stop`] waits for that.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    control_socket: PathBuf,
    parts: JoinSet<DaemonError>,
    /// Dropping it stops the control server, which then removes its socket.
    stop_control: Option<oneshot::Sender<()>>,
    control: tokio::task::JoinHandle<io::Result<()>>,
}

/// What status tells of and `run` changes.
#[derive(Debug)]
struct Shared {
    context: Context,
    interception: Arc<Interception>,
    listeners: Vec<Listener>,
    started: Instant,
}

impl Daemon {
    /// Starts every part; when this returns, all of them work.
    pub async fn start(config: Config, reaper: fn() -> Command) -> Result<Self, DaemonError> {
        let access = access(&config)?;
        let listeners = Listeners::bind(config.listen).await?;
        // Before anything that would disturb a daemon that runs already.
        let socket_path = config.control.socket.clone().unwrap_or_else(control::default_socket);
        let socket = ControlSocket::bind(&socket_path, access)?;
        let features = Features::new(features::load(config.features.as_deref())?);
        let context = context(&config, features.clone())?;

        let mut parts = JoinSet::new();
        if let Some(file) = config.features.clone() {
            let reloader = Reloader::new(file, features);
            let journal = context.journal.clone();
            parts.spawn(async move { reloader.run(journal).await });
        }
        if let Some(file) = config.bond.membership.clone().filter(|_| config.bond.enabled) {
            let Context { bond, paths, resolver, journal, .. } = context.clone();
            let following = bond.follow(config.bond.clone(), file, paths, resolver, journal);
            parts.spawn(async move {
                following.await;
                DaemonError::PartFailed { part: "relay", error: io::Error::other("it ended") }
            });
        }
        parts.spawn(return_memory(context.buffers.clone()));
        parts.spawn(follow_paths(context.paths.subscribe(), context.journal.clone()));
        let ports = Ports { transparent: listeners.transparent.port, dns: listeners.dns.port };
        let list = listeners.list.clone();
        serve(&mut parts, listeners, &context);
        // Last: from here on connections come that must be answered.
        let interception = Arc::new(Interception::start(config.intercept, ports, reaper)?);
        parts.spawn(tidy(Arc::clone(&interception)));
        let shared = Arc::new(Shared { context, interception, listeners: list, started: Instant::now() });

        let (stop_control, stopped) = oneshot::channel::<()>();
        let backend: Arc<dyn Backend> = Arc::clone(&shared) as _;
        let control = tokio::spawn(control::serve(socket, backend, async {
            let _ = stopped.await;
        }));
        Ok(Self { shared, control_socket: socket_path, parts, stop_control: Some(stop_control), control })
    }

    /// Everything the daemon tells of itself.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Where HTTP proxy and SOCKS5 are offered.
    pub fn proxy_address(&self) -> SocketAddr {
        self.shared.proxy_address()
    }

    /// Says in the log, and to the service manager, that it works and how it can be used.
    fn announce(&self) {
        let proxy = self.proxy_address();
        tracing::info!("HTTP proxy and SOCKS5 on {proxy}, control socket {}", self.control_socket.display());
        if !proxy.ip().is_loopback() {
            tracing::warn!("whoever can reach {proxy} may use this device's networks: there is no password");
        }
        match self.shared.interception.off_reason() {
            None => tracing::info!("interception works: `multiway run CMD` puts a program under this daemon"),
            Some(reason) => tracing::warn!("no interception, only the proxies: {reason}"),
        }
        if self.shared.context.paths.usable().is_empty() {
            tracing::warn!("no network can be used now; `multiway paths` says what each one lacks");
        }
        let status = format!("HTTP proxy and SOCKS5 on {proxy}");
        notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&status)]);
    }

    /// Waits until a part fails, which none should.
    async fn failure(&mut self) -> DaemonError {
        tokio::select! {
            Some(ended) = self.parts.join_next() => ended.unwrap_or_else(|panic| DaemonError::PartFailed {
                part: "daemon",
                error: io::Error::other(panic),
            }),
            ended = &mut self.control => DaemonError::PartFailed {
                part: "control socket",
                error: match ended {
                    Ok(Err(error)) => error,
                    Ok(Ok(())) => io::Error::other("it ended"),
                    Err(panic) => io::Error::other(panic),
                },
            },
        }
    }

    /// Ends every part: first interception, so that new connections take the plain way at once; but
    /// its table goes last, for it takes the ends of connections to their programs.
    pub async fn stop(mut self) {
        self.shared.interception.let_go();
        drop(self.stop_control.take());
        if !self.control.is_finished() && (&mut self.control).await.is_err() {
            tracing::warn!("the control socket did not end in order");
        }
        self.shared.context.bond.leave().await;
        self.parts.shutdown().await;
        let deadline = Instant::now() + FLOWS_END_WITHIN;
        while !self.shared.context.flows.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(FLOWS_LOOK_INTERVAL).await;
        }
        let interception = Arc::clone(&self.shared.interception);
        // It waits for the reaper, which waits for processes.
        if tokio::task::spawn_blocking(move || interception.stop()).await.is_err() {
            tracing::warn!("interception did not end in order");
        }
    }
}

impl Backend for Shared {
    fn status(&self) -> Status {
        let snapshot = self.context.paths.snapshot();
        let interface_of = |id| {
            let known = snapshot.iter().find(|path| path.info.id == id);
            known.map_or_else(|| format!("{id}"), |path| path.info.interface.clone())
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            paths: snapshot
                .iter()
                .map(|path| path_status(&path.info, path.is_permitted, path.estimate, path.bytes_today))
                .collect(),
            flows: self.context.flows.running().iter().map(|flow| flow.status(interface_of)).collect(),
            relays: self.context.bond.status(interface_of),
            listeners: self.listeners.clone(),
            interception: self.interception.status(),
            events: self.context.journal.latest(),
        }
    }

    fn adopt(&self, caller: Caller, program: &str) -> Result<RunResponse, AdoptError> {
        Ok(match self.interception.adopt(&caller)? {
            Ok(cgroup) => {
                tracing::info!(user = caller.user, "runs {program:?} in {cgroup}");
                RunResponse::Intercepted { cgroup }
            }
            Err(reason) => {
                tracing::info!(user = caller.user, "leaves {program:?} to the proxy: {reason}");
                RunResponse::ProxyOnly { proxy: self.proxy_address(), reason }
            }
        })
    }

    fn events(&self) -> broadcast::Receiver<api::Event> {
        self.context.journal.subscribe()
    }
}

impl Shared {
    fn proxy_address(&self) -> SocketAddr {
        self.listeners.first().expect("the proxy's listener is the first").address
    }
}

fn access(config: &Config) -> Result<Access, DaemonError> {
    let group = match &config.control.group {
        None => None,
        Some(name) => {
            let unknown = || DaemonError::UnknownAccount { kind: "group", name: name.clone() };
            Some(accounts::group_id(name).ok().flatten().ok_or_else(unknown)?)
        }
    };
    Ok(Access { group, everyone_may_run: config.control.everyone_may_run })
}

fn context(config: &Config, features: Features) -> Result<Context, DaemonError> {
    let paths = PathTable::start(PathTableConfig {
        permission: config.paths.permission.clone(),
        overrides: config.paths.overrides.clone(),
        mark: Some(BYPASS_MARK),
        preference: config.preference,
        history: config.history.clone(),
    })?;
    if let Some(probe) = config.paths.portal_probe.clone() {
        paths.look_for_portals(probe);
    }
    let upstreams = config.dns.upstreams.iter().map(|server| SocketAddr::new(*server, DNS_PORT)).collect();
    let upstreams = Upstreams::new(upstreams, SystemFiles::default());
    let resolver = Resolver::preferring(config.preference, Arc::new(paths.clone()), upstreams);
    let journal = Journal::default();
    tell_of_doubts(&resolver, &paths, &journal);
    Ok(Context {
        resolver,
        paths,
        flows: FlowTable::default(),
        owners: proxy::Owners::default(),
        features,
        preference: config.preference,
        bond: crate::bond::BondSlot::default(),
        buffers: SharedBuffers::new(config.buffers.total_bytes, config.buffers.flow_bytes),
        journal,
    })
}

/// Records suspicious DNS answers.
fn tell_of_doubts(resolver: &Resolver, paths: &PathTable, journal: &Journal) {
    let (paths, journal) = (paths.clone(), journal.clone());
    resolver.on_suspicion(move |name, path, suspicion| {
        let interface = paths.get(path).map_or_else(|| path.to_string(), |info| info.interface);
        let (name, reason) = (name.to_string(), suspicion.to_string());
        journal.record(EventDetail::DnsSuspicious { name, interface, reason });
    });
}

/// Answers on every socket.
fn serve(parts: &mut JoinSet<DaemonError>, listeners: Listeners, context: &Context) {
    let Listeners { proxy, transparent, dns, list: _ } = listeners;
    for listener in [Some(proxy), Some(transparent.v4), transparent.v6].into_iter().flatten() {
        let context = context.clone();
        parts.spawn(async move {
            let error = ended(proxy::serve(context, listener).await);
            DaemonError::PartFailed { part: "proxy", error }
        });
    }
    for (udp, tcp) in [Some(dns.v4), dns.v6].into_iter().flatten() {
        let resolver = context.resolver.clone();
        parts.spawn(async move {
            let error = ended(resolver.serve(udp, tcp).await);
            DaemonError::PartFailed { part: "DNS resolver", error }
        });
    }
}

/// A server that ends is a failure in any case.
fn ended(result: io::Result<()>) -> io::Error {
    result.err().unwrap_or_else(|| io::Error::other("it ended"))
}

/// Records each change of a path's state.
async fn follow_paths(mut paths: watch::Receiver<Arc<Vec<PathInfo>>>, journal: Journal) -> DaemonError {
    let mut before = Arc::clone(&paths.borrow_and_update());
    while paths.changed().await.is_ok() {
        let after = Arc::clone(&paths.borrow_and_update());
        for (interface, state) in changes(&before, &after) {
            journal.record(EventDetail::PathChanged { interface, state });
        }
        before = after;
    }
    DaemonError::PartFailed { part: "watching of paths", error: io::Error::other("it ended") }
}

/// Interfaces whose state is another, with the new one in words.
fn changes(before: &[PathInfo], after: &[PathInfo]) -> Vec<(String, String)> {
    let state_in = |paths: &[PathInfo], id| paths.iter().find(|path| path.id == id).map(|path| path.state);
    let changed = after
        .iter()
        .filter(|path| state_in(before, path.id) != Some(path.state))
        .map(|path| (path.interface.clone(), state(path.state).to_string()));
    let gone = before
        .iter()
        .filter(|path| state_in(after, path.id).is_none())
        .map(|path| (path.interface.clone(), "gone".to_owned()));
    changed.chain(gone).collect()
}

/// Gives memory back after a burst of transfers.
async fn return_memory(buffers: SharedBuffers) -> DaemonError {
    loop {
        tokio::time::sleep(MEMORY_INTERVAL).await;
        let is_worth_it =
            memory::resident_bytes().is_ok_and(|resident| resident > buffers.held() + MEMORY_SLACK);
        if is_worth_it && tokio::task::spawn_blocking(memory::return_freed).await.is_err() {
            tracing::warn!("freed memory is not given back");
        }
    }
}

async fn tidy(interception: Arc<Interception>) -> DaemonError {
    loop {
        tokio::time::sleep(TIDY_INTERVAL).await;
        let interception = Arc::clone(&interception);
        if let Err(panic) = tokio::task::spawn_blocking(move || interception.tidy()).await {
            return DaemonError::PartFailed { part: "interception", error: io::Error::other(panic) };
        }
    }
}

/// The service manager may be absent; what it was told matters to nobody else.
fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager could not be told");
    }
}

#[cfg(test)]
mod tests;
