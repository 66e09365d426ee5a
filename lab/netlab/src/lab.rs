//! The lab: hosts and what joins them.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use multiway_linksim::LinkSpec;

use crate::directory::Directory;
use crate::host::Host;
use crate::keeper::Keeper;
use crate::link::EmulatedLink;

/// Every lab's working directory begins with this, so that one can be known as left behind.
const DIRECTORY_PREFIX: &str = "multiway-lab-";

/// The congestion control of every host unless told otherwise: Linux's default, and most servers'.
pub(crate) const DEFAULT_CONGESTION_CONTROL: &str = "cubic";

/// A network of hosts and links inside this process.
///
/// When it is dropped, or its process dies in whatever way, all of it is gone: hosts have no names in
/// the system, interfaces go with their hosts, and processes die with the lab, as do its files.
pub struct Lab {
    origin: Instant,
    seed: u64,
    congestion_control: String,
    keeper: Keeper,
    /// Links run as long as the lab, also when nobody keeps their handle.
    links: Mutex<Vec<EmulatedLink>>,
    directory: Directory,
}

/// Why no lab can run here; none when one can. A lab needs root and TUN devices.
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network labs need root".to_owned());
    }
    let try_it = || -> Result<()> {
        let host = Host::create("probe", Keeper::start()?)?;
        host.run(|| crate::tun::Tun::open("probe")).map(drop)
    };
    try_it().err().map(|error| format!("{error:#}"))
}

/// Leaves a test, and says so, when no lab can run here.
#[macro_export]
macro_rules! skip_without_lab {
    () => {
        if let Some(reason) = $crate::missing() {
            $crate::say_skipped(&reason);
            return $crate::Skipped::skipped();
        }
    };
}

/// Says loudly that a test does not run.
#[doc(hidden)]
#[expect(clippy::print_stderr, reason = "a test that does not run must be seen")]
pub fn say_skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// What a test that [`skip_without_lab`] leaves returns.
#[doc(hidden)]
pub trait Skipped {
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for std::result::Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

impl Lab {
    /// An empty lab, seeded with 1.
    pub fn new() -> Result<Self> {
        Self::seeded(1)
    }

    /// An empty lab; the seed decides every random loss and jitter.
    pub fn seeded(seed: u64) -> Result<Self> {
        Ok(Self {
            origin: Instant::now(),
            seed,
            congestion_control: DEFAULT_CONGESTION_CONTROL.to_owned(),
            keeper: Keeper::start()?,
            links: Mutex::default(),
            directory: Directory::new(DIRECTORY_PREFIX)?,
        })
    }

    /// Hosts made from now on use this congestion control.
    #[must_use]
    pub fn with_congestion_control(mut self, name: &str) -> Self {
        self.congestion_control = name.to_owned();
        self
    }

    /// A new host with a loopback interface that is up and nothing else.
    pub fn host(&self, name: &str) -> Result<Host> {
        let host = Host::create(name, self.keeper.clone())?;
        for (key, value) in [
            // Routes over several interfaces are asymmetric to a host that looks at one.
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            // Hosts say nothing of their own, so that every packet counted on a link is the test's.
            ("net.ipv6.conf.default.accept_ra", "0"),
            ("net.ipv6.conf.default.router_solicitations", "0"),
            // Even without a probe an address would wait for up to a second, and nothing finds its neighbour meanwhile.
            ("net.ipv6.conf.all.accept_dad", "0"),
            ("net.ipv6.conf.default.accept_dad", "0"),
            ("net.ipv6.conf.default.addr_gen_mode", "1"),
            // An address comes back as it was when its interface was down in between.
            ("net.ipv6.conf.default.keep_addr_on_down", "1"),
            // One transfer teaches the next nothing.
            ("net.ipv4.tcp_no_metrics_save", "1"),
            // 400 Mbit/s at 150 ms fill 7.5 MB; a sender's buffer also holds what is not yet acknowledged.
            ("net.ipv4.tcp_rmem", "4096 131072 33554432"),
            ("net.ipv4.tcp_wmem", "4096 16384 33554432"),
            ("net.ipv4.ping_group_range", "0 2147483647"),
        ] {
            host.sysctl(key, value)?;
        }
        set_congestion_control(&host, &self.congestion_control)?;
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Joins two hosts by an emulated link: each gets an interface of the given name, up, without
    /// addresses. Up is from the first host to the second.
    pub fn link(
        &self,
        near: &Host,
        near_interface: &str,
        far: &Host,
        far_interface: &str,
        spec: LinkSpec,
    ) -> Result<EmulatedLink> {
        let link =
            EmulatedLink::start((near, near_interface), (far, far_interface), spec, self.seed, self.origin)?;
        for (host, interface) in [(near, near_interface), (far, far_interface)] {
            host.ip(&format!("link set {interface} multicast off"))?;
        }
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(link.clone());
        Ok(link)
    }

    /// Joins two hosts by a cable without any limit (a veth pair), up, without addresses.
    pub fn cable(&self, near: &Host, near_interface: &str, far: &Host, far_interface: &str) -> Result<()> {
        let far_namespace = far.namespace_path();
        near.ip(&format!(
            "link add {near_interface} type veth peer name {far_interface} netns {far_namespace}"
        ))?;
        // Unlike an emulated link a cable resolves neighbours, which takes a link-local address.
        for (host, interface) in [(near, near_interface), (far, far_interface)] {
            host.ip(&format!("link set {interface} addrgenmode eui64"))?;
            host.ip(&format!("link set {interface} up"))?;
        }
        Ok(())
    }

    /// The lab's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A directory that is removed with the lab.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new directory in the lab's, with a name made from `name`.
    pub(crate) fn new_directory(&self, name: &str) -> Result<PathBuf> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .disable_cleanup(true)
            .tempdir_in(self.directory.path())
            .with_context(|| format!("cannot make a directory in {}", self.directory.path().display()))?;
        Ok(directory.keep())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Threads that forward end before the namespaces they forward between.
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Sets a namespace's congestion control.
///
/// Namespaces other than the first may only choose what the machine allows everybody, which is its own
/// default and reno. Where that is not what the scenario asks for it is added to the allowed ones,
/// which changes nothing for programs that do not ask for it; this is the one trace a lab leaves.
fn set_congestion_control(host: &Host, name: &str) -> Result<()> {
    const CURRENT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let set = || std::fs::write(CURRENT, name);
    if host.run(|| std::fs::read_to_string(CURRENT)).is_ok_and(|current| current.trim() == name) {
        return Ok(());
    }
    if let Err(error) = host.run(set) {
        if error.kind() == std::io::ErrorKind::PermissionDenied
            && let Ok(allowed) = std::fs::read_to_string(ALLOWED)
        {
            // What is left to say about a failure here, the second attempt says.
            let _ = std::fs::write(ALLOWED, format!("{} {name}", allowed.trim()));
        }
        host.run(set).with_context(|| {
            format!(
                "cannot use the congestion control `{name}` on {}: the machine has to know and to allow it, see \
                 net.ipv4.tcp_available_congestion_control and net.ipv4.tcp_allowed_congestion_control",
                host.name()
            )
        })?;
    }
    Ok(())
}
