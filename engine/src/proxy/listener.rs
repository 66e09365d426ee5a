//! The one port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use multiway_edge::original_dst::original_destination;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{http, socks, transparent};
use crate::context::Context;

/// Clients at once. Each needs two or more file descriptors.
const MAX_CLIENTS: usize = 8192;

/// How long a client of a proxy protocol, which has to speak first, may be silent.
const FIRST_BYTE_WAIT: Duration = Duration::from_secs(60);

/// Pause after a failure to accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves everyone who connects to `listener`, until dropped, which ends all their connections.
pub async fn serve(context: Context, listener: TcpListener) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        // Beyond that, clients wait in the kernel's queue.
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        while clients.try_join_next().is_some() {}
        let (client, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client; raise the limit of open files if it is that");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let context = context.clone();
        clients.spawn(async move {
            let _place = place;
            if let Err(error) = serve_client(context, client).await {
                tracing::debug!(%peer, %error, "a client left or broke its protocol");
            }
        });
    }
}

async fn serve_client(context: Context, client: TcpStream) -> io::Result<()> {
    // Whatever arrives from the server in one piece goes to the application in one piece.
    client.set_nodelay(true)?;
    if let Some(original) = redirected_from(&client) {
        return transparent::serve(context, client, original).await;
    }
    let mut first = [0];
    if timeout(FIRST_BYTE_WAIT, client.peek(&mut first)).await?? == 0 {
        return Ok(());
    }
    match first[0] {
        socks::VERSION => socks::serve(context, client).await,
        _ => http::serve_proxy(context, client).await,
    }
}

/// Where a redirected connection was going; `None` for one that was made to the proxy itself.
fn redirected_from(client: &TcpStream) -> Option<SocketAddr> {
    original_destination(client.as_fd()).ok()
}

#[cfg(test)]
mod tests;
