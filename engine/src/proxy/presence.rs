//! Whether the program that asked is still there.
//!
//! While nothing can be written to a client, nothing tells that it is gone: paths that cost money would
//! go on bringing bytes for nobody.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use multiway_edge::process::is_abandoned;
use multiway_edge::tcp_info::{Peer, peer};
use tokio::net::TcpStream;

/// How often it is looked; a second of a path's bytes is lost at most.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns when `client` can get no answer any more: its connection was reset, or its program on this
/// device has closed it. `destinations` are the addresses to which it may believe to be connected.
///
/// A program that only ended its own direction still reads and is there; so is, for want of a better
/// sign, one on another device.
pub(super) async fn gone(client: &TcpStream, destinations: &[SocketAddr]) {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        match peer(client.as_fd()) {
            Ok(Peer::Gone) => return,
            Ok(Peer::Ended) => {
                let Ok(program) = client.peer_addr() else { return };
                if destinations.iter().any(|&remote| is_abandoned(plain(program), plain(remote))) {
                    return;
                }
            }
            // A socket that cannot be asked is found out by writing.
            Ok(Peer::Sending) | Err(_) => {}
        }
    }
}
