//! Network labs on the real kernel, without netem and without leaving anything behind.
//!
//! A [`Lab`] is made of hosts, which are anonymous network namespaces, joined by links that are
//! emulated by [`multiway_linksim`]: each link is a TUN device at either end and one thread that moves
//! packets between them when the link model says so. Everything vanishes with the process, however it
//! ends. Root is needed.
//!
//! A device with two networks, a server beyond them, and unmodified programs:
//!
//! ```
//! use std::time::Duration;
//! use multiway_core::paths::PathKind;
//! use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
//! use multiway_netlab::Network;
//!
//! # fn main() -> anyhow::Result<()> {
//! # multiway_netlab::skip_without_lab!();
//! let scenario = Scenario::new("Wi-Fi and LTE")
//!     .path("wlan0", PathKind::Wifi, LinkSpec::symmetric(mbit(20), Duration::from_millis(30)))
//!     .path("wwan0", PathKind::Cellular, LinkSpec::symmetric(mbit(15), Duration::from_millis(60)))
//!     .server(ServerSpec::new("origin").known_as("files.example").file("100kB.bin", 100_000));
//! let network = Network::build(&scenario)?;
//!
//! // Unmodified curl on the device, over each of its networks: http://10.99.0.1/100kB.bin.
//! for path in network.paths() {
//!     let mut curl = network.device().command("curl");
//!     curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"])
//!         .args(["--interface", path.interface(), &network.server("origin").url("100kB.bin")]);
//!     assert_eq!(network.device().output(curl)?, "200 100000");
//! }
//!
//! // The Wi-Fi goes silent, and comes back.
//! network.path("wlan0").link().set_blackhole(true);
//! network.path("wlan0").link().set_blackhole(false);
//! # Ok(())
//! # }
//! ```

mod certificate;
pub mod content;
mod directory;
mod dns;
mod forward;
mod host;
pub mod hostile;
mod keeper;
mod lab;
mod link;
mod mptcp;
mod netns;
mod network;
mod nginx;
mod packet;
mod ssh;
mod tun;

pub use certificate::self_signed;
pub use directory::Directory;
pub use dns::{DnsAnswer, DnsQuery, DnsServer};
pub use host::{Host, Process};
pub use lab::{Lab, Skipped, missing, say_skipped};
pub use link::{Direction, EmulatedLink};
pub use network::{Network, NetworkOptions, NetworkPath, Server};
pub use nginx::{LoggedRequest, Nginx, NginxSpec};
pub use packet::{PassedPacket, TcpHead};
pub use ssh::{SSHD, Sshd};
