//! A context over two paths that both lead to the loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use multiway_core::paths::{NetworkIdentity, PathId, PathInfo, PathKind, PathState};
use tokio::net::TcpListener;

use crate::context::{Context, Features};
use crate::dns::{Resolver, SystemFiles, Upstreams};
use crate::flows::FlowTable;
use crate::paths::{PathTable, PathTableConfig};
use crate::split::SharedBuffers;

/// The paths, distinguished at the server by the client's address.
pub(super) const WIFI: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));
pub(super) const LTE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 2, 1));

fn path(id: u32, address: IpAddr, kind: PathKind) -> PathInfo {
    PathInfo {
        id: PathId(id),
        interface: "lo".to_owned(),
        kind,
        metered: false,
        addresses: vec![address],
        gateways: Vec::new(),
        dns_servers: Vec::new(),
        network: NetworkIdentity::default(),
        state: PathState::Up,
    }
}

/// Both paths, the Wi-Fi first; `hosts` is the content of a hosts file.
pub(super) fn context(directory: &tempfile::TempDir, hosts: &str) -> Context {
    let paths = vec![path(1, WIFI, PathKind::Wifi), path(2, LTE, PathKind::Cellular)];
    context_with(paths, directory, hosts)
}

pub(super) fn context_with(paths: Vec<PathInfo>, directory: &tempfile::TempDir, hosts: &str) -> Context {
    let paths = PathTable::with_paths(paths, PathTableConfig::default()).expect("no names to check");
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("hosts"), hosts).expect("written");
    let files =
        SystemFiles { hosts: file("hosts"), resolv_conf: file("resolv.conf"), stub_servers: file("stub") };
    Context {
        resolver: Resolver::new(std::sync::Arc::new(paths.clone()), Upstreams::new(Vec::new(), files)),
        paths,
        flows: FlowTable::default(),
        owners: crate::proxy::Owners::default(),
        features: Features::default(),
        preference: multiway_core::paths::Preference::default(),
        bond: crate::bond::BondSlot::default(),
        buffers: SharedBuffers::unshared(64 << 20),
        journal: crate::journal::Journal::default(),
    }
}

/// A listener for a server or the proxy.
pub(super) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// A preferred path from which nothing can be sent, and one from `address`.
pub(super) fn unreachable(id: u32, address: IpAddr) -> Vec<PathInfo> {
    let nowhere = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
    vec![path(id, nowhere, PathKind::Wifi), path(id + 1, address, PathKind::Cellular)]
}
