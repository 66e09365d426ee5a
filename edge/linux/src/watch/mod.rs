//! Interfaces, addresses and routes: as they are now, and whenever they change.

mod assemble;
mod kind;
mod manager;
mod resolved;
mod tables;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use multiway_core::paths::PathInfo;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use self::assemble::{GatewayMemory, Hints};
use self::tables::{Link, Tables};
use crate::netlink::{self, RouteSocket};

/// Multicast groups of rtnetlink that bear on paths (`enum rtnetlink_groups`, rtnetlink.h):
/// links, neighbours, IPv4 addresses, routes and rules, and IPv6 addresses, routes and rules.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];

/// An interface that comes up makes tens of messages within milliseconds; they are one change.
const QUIET: Duration = Duration::from_millis(30);

/// A table that never rests is read this often at least.
const LONGEST_BURST: Duration = Duration::from_millis(300);

/// How long a NetworkManager that did not answer is left alone.
const MANAGER_PAUSE: Duration = Duration::from_secs(60);

/// How often NetworkManager is asked for what it does not tell through the kernel.
const MANAGER_RECHECK: Duration = Duration::from_secs(15);

/// Why interfaces could not be read or watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// rtnetlink gave no socket or no answer.
    #[error("the kernel's list of network interfaces cannot be read (rtnetlink): {0}")]
    Netlink(#[source] io::Error),
    /// The watching thread could not be made.
    #[error("the thread that watches network interfaces cannot be started: {0}")]
    Thread(#[source] io::Error),
}

/// All interfaces but the loopback, with what is missing for each to be used.
pub fn snapshot() -> Result<Vec<PathInfo>, WatchError> {
    let observer = Observer::new().map_err(WatchError::Netlink)?;
    let mut memory = GatewayMemory::default();
    observer.paths(&mut memory).map_err(WatchError::Netlink)
}

/// A thread that reports paths as they change, until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    thread: Option<JoinHandle<()>>,
    /// Closing it tells the thread to end.
    stop: Option<OwnedFd>,
}

impl Watcher {
    /// Watches the network namespace that the calling thread is in.
    ///
    /// `on_change` runs on the watcher's thread: once for the present state, then whenever it
    /// differs from the last one reported. Bursts of changes are reported as one.
    pub fn start(on_change: impl Fn(Vec<PathInfo>) + Send + 'static) -> Result<Self, WatchError> {
        // Subscribed before the first reading, so that no change falls between.
        let events = subscribe().map_err(WatchError::Netlink)?;
        let observer = Observer::new().map_err(WatchError::Netlink)?;
        let mut memory = GatewayMemory::default();
        let first = observer.paths(&mut memory).map_err(WatchError::Netlink)?;
        let (stopped, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(|error| WatchError::Thread(error.into()))?;
        let thread = std::thread::Builder::new()
            .name("path-watcher".to_owned())
            .spawn(move || {
                let mut reported = first.clone();
                on_change(first);
                while wait_for_change(&events, &stopped, &memory, observer.recheck_after()) {
                    match observer.paths(&mut memory) {
                        Ok(paths) if paths != reported => {
                            reported.clone_from(&paths);
                            on_change(paths);
                        }
                        Ok(_) => {}
                        Err(error) => tracing::warn!(%error, "network interfaces could not be read"),
                    }
                }
            })
            .map_err(WatchError::Thread)?;
        Ok(Self { thread: Some(thread), stop: Some(stop) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that watches network interfaces had panicked");
        }
    }
}

/// Reads the tables and asks the programs that manage networks.
struct Observer {
    socket: RouteSocket,
    /// Those programs manage the host's first network namespace; of others they know nothing.
    is_managed: bool,
    /// NetworkManager is there and takes too long; it is not asked before then.
    unanswered_until: Cell<Option<Instant>>,
    /// NetworkManager answered last time.
    has_manager: Cell<bool>,
}

impl Observer {
    fn new() -> io::Result<Self> {
        Ok(Self {
            socket: RouteSocket::open()?,
            is_managed: is_first_namespace(),
            unanswered_until: Cell::new(None),
            has_manager: Cell::new(false),
        })
    }

    fn paths(&self, memory: &mut GatewayMemory) -> io::Result<Vec<PathInfo>> {
        let tables = Tables::read(&self.socket)?;
        memory.update(&tables);
        let mut hints = if self.is_managed { self.ask_manager(&tables.links) } else { BTreeMap::new() };
        Ok(assemble::paths(&tables, memory, |link| {
            let mut hints = hints.remove(&link.index).unwrap_or_default();
            if self.is_managed && hints.dns_servers.is_empty() {
                hints.dns_servers = resolved::dns_servers(link.index);
            }
            hints
        }))
    }

    /// When to read again without a word from the kernel, which knows nothing of metering.
    fn recheck_after(&self) -> Option<Duration> {
        self.has_manager.get().then_some(MANAGER_RECHECK)
    }

    fn ask_manager(&self, links: &[Link]) -> BTreeMap<u32, Hints> {
        if self.unanswered_until.get().is_some_and(|until| Instant::now() < until) {
            return BTreeMap::new();
        }
        let answer = manager::ask(links);
        self.has_manager.set(matches!(answer, manager::Answer::Hints(_)));
        match answer {
            manager::Answer::Hints(hints) => hints,
            manager::Answer::Absent => BTreeMap::new(),
            manager::Answer::Silent => {
                self.unanswered_until.set(Some(Instant::now() + MANAGER_PAUSE));
                tracing::warn!("NetworkManager does not answer; paths are described without it");
                BTreeMap::new()
            }
        }
    }
}

/// True in the network namespace of process 1, and where that cannot be told.
fn is_first_namespace() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    match (namespace("thread-self"), namespace("1")) {
        (Some(ours), Some(first)) => ours == first,
        _ => true,
    }
}

fn subscribe() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        socket.add_membership(group)?;
    }
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Waits for the end of a burst of changes, or for `idle`; false when the watcher was told to stop.
fn wait_for_change(
    events: &Socket,
    stopped: &OwnedFd,
    memory: &GatewayMemory,
    idle: Option<Duration>,
) -> bool {
    let mut deadline = idle.map(|idle| Instant::now() + idle);
    let mut burst_end = None;
    loop {
        let timeout = deadline.map_or(PollTimeout::NONE, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the end has come when poll returns.
            u16::try_from(left.as_millis()).unwrap_or(u16::MAX).saturating_add(1).into()
        });
        let mut fds =
            [PollFd::new(events.as_fd(), PollFlags::POLLIN), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        match nix::poll::poll(&mut fds, timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => {
                tracing::warn!(%error, "network interfaces are no longer watched");
                return false;
            }
            Ok(_) => {}
        }
        if fds[1].any().unwrap_or(true) {
            return false;
        }
        let now = Instant::now();
        if drain(events, memory) {
            let end = *burst_end.get_or_insert(now + LONGEST_BURST);
            deadline = Some(end.min(now + QUIET));
        }
        if deadline.is_some_and(|deadline| now >= deadline) {
            return true;
        }
    }
}

/// Empties the socket; true when something came that bears on paths.
fn drain(events: &Socket, memory: &GatewayMemory) -> bool {
    let mut relevant = false;
    loop {
        match events.recv_from_full() {
            Ok((datagram, _)) => {
                relevant |= netlink::messages(&datagram).any(|(_, payload)| is_relevant(&payload, memory));
            }
            // The kernel dropped messages (ENOBUFS): what they said must be read anew.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => relevant = true,
            Err(_) => return relevant,
        }
    }
}

/// Neighbours change all the time; only a gateway's new hardware address tells of another network.
fn is_relevant(payload: &NetlinkPayload<RouteNetlinkMessage>, memory: &GatewayMemory) -> bool {
    let NetlinkPayload::InnerMessage(message) = payload else {
        return false;
    };
    match message {
        RouteNetlinkMessage::NewNeighbour(message) => {
            tables::neighbour(message).is_some_and(|neighbour| memory.would_learn_from(&neighbour))
        }
        RouteNetlinkMessage::DelNeighbour(_) => false,
        _ => true,
    }
}
