//! An HTTP server that does wrong things on purpose.
//!
//! It serves one object of random bytes under every path. What it does wrong is chosen
//!
//! - by URL: `http://origin/shifted-range/file.bin` does it to everyone, and
//!   `http://origin/shifted-range/file.bin?on=10.2.0.2` to the client with that address only,
//! - by client: [`HostileSpec::to_client`], so that the same URL lies on one path and not on another,
//! - by listener: [`HostileSpec::listen_with`],
//!
//! in this order; [`Misdeed`] lists everything it can do.
//!
//! ```
//! use multiway_netlab::hostile::{HostileOrigin, HostileSpec, Misdeed};
//!
//! # fn main() -> anyhow::Result<()> {
//! let origin = HostileOrigin::start(&HostileSpec::serving(100_000).listen("127.0.0.1:0".parse()?))?;
//! let url = origin.url(Misdeed::IgnoresRange);
//! let curl = std::process::Command::new("curl").args(["-s", "-r", "0-99", &url]).output()?;
//! assert_eq!(curl.stdout, origin.bytes());
//! # Ok(())
//! # }
//! ```

mod answer;
mod misdeed;
mod request;
mod server;

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use multiway_core::units::Rate;

pub use misdeed::{Misdeed, UnknownMisdeed};

use crate::content::content;
use answer::Object;
use server::Shared;

/// Seeds of the object and of its other version.
const SEEDS: [u64; 2] = [1, 2];

/// What a hostile origin will be like.
#[derive(Debug, Clone)]
pub struct HostileSpec {
    bytes: u64,
    listeners: Vec<(SocketAddr, Option<Misdeed>)>,
    clients: Vec<(IpAddr, Misdeed)>,
    rate: Option<Rate>,
}

impl HostileSpec {
    /// One that serves an object of this size and listens nowhere yet.
    pub fn serving(bytes: u64) -> Self {
        Self { bytes, listeners: Vec::new(), clients: Vec::new(), rate: None }
    }

    /// Also listens here, and behaves.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listeners.push((address, None));
        self
    }

    /// Also listens here, and does this to all who come here.
    #[must_use]
    pub fn listen_with(mut self, address: SocketAddr, misdeed: Misdeed) -> Self {
        self.listeners.push((address, Some(misdeed)));
        self
    }

    /// Does this to the client with this address.
    #[must_use]
    pub fn to_client(mut self, client: IpAddr, misdeed: Misdeed) -> Self {
        self.clients.push((client, misdeed));
        self
    }

    /// Sends each body no faster than this, for networks without links of a rate.
    #[must_use]
    pub fn paced(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }
}

/// A request that the origin read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRequest {
    /// Who asked.
    pub client: IpAddr,
    /// How.
    pub method: String,
    /// For what, without the query.
    pub path: String,
    /// The `Range` header, when there was one.
    pub range: Option<String>,
    /// What was done to it.
    pub misdeed: Option<Misdeed>,
}

/// A running hostile origin; it ends when dropped.
pub struct HostileOrigin {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    acceptors: Vec<JoinHandle<()>>,
}

impl HostileOrigin {
    /// Starts it in the network namespace of the calling thread ([`crate::Host::run`] starts it on a
    /// host of a lab).
    pub fn start(spec: &HostileSpec) -> Result<Self> {
        let version = |seed| -> Result<Arc<[u8]>> {
            let mut bytes = Vec::new();
            content(seed, "hostile", spec.bytes).read_to_end(&mut bytes)?;
            Ok(bytes.into())
        };
        let object = Object { bytes: version(SEEDS[0])?, other: version(SEEDS[1])? };
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for &(address, misdeed) in &spec.listeners {
            let listener =
                TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
            addresses.push(listener.local_addr()?);
            listeners.push((listener, misdeed));
        }
        let shared = Arc::new(Shared::new(object, spec.clients.clone(), spec.rate));
        let mut origin = Self { addresses, shared, acceptors: Vec::new() };
        for (listener, misdeed) in listeners {
            let acceptor = server::accept_on(listener, misdeed, &origin.shared)?;
            origin.acceptors.push(acceptor);
        }
        Ok(origin)
    }

    /// Where it listens, in the order given.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The URL, at its first listener, where nothing is wrong unless it is for the client or the listener.
    pub fn honest_url(&self) -> String {
        format!("http://{}/file.bin", self.addresses[0])
    }

    /// The URL, at its first listener, where it does this to everyone.
    pub fn url(&self, misdeed: Misdeed) -> String {
        format!("http://{}/{misdeed}/file.bin", self.addresses[0])
    }

    /// The URL, at its first listener, where it does this to one client.
    pub fn url_on(&self, misdeed: Misdeed, client: IpAddr) -> String {
        format!("{}?on={client}", self.url(misdeed))
    }

    /// The object.
    pub fn bytes(&self) -> &[u8] {
        &self.shared.object().bytes
    }

    /// Its other version.
    pub fn other_version(&self) -> &[u8] {
        &self.shared.object().other
    }

    /// What was asked until now.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.shared.requests()
    }
}

impl Drop for HostileOrigin {
    fn drop(&mut self) {
        self.shared.stop();
        for acceptor in self.acceptors.drain(..) {
            // A panic there was already reported on standard error.
            let _ = acceptor.join();
        }
    }
}
