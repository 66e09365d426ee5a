//! HTTP flows: each request of a client's connection is split over paths or relayed over one.
//!
//! Messages pass byte for byte. What is read is only what the framing needs (RFC 9112): where a
//! head ends, where a body ends, whether the connection goes on. A client that speaks to a proxy
//! has its request targets turned into origin form; nothing else is rewritten.

mod exchange;
mod http_dns;
mod plainly;
mod session;
mod sink;
mod split;

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::HttpFlow;
use super::tunnel::Destination;
use crate::context::Context;
use session::{Role, Session};

/// Serves a client that speaks to the proxy itself.
pub async fn serve_proxy(context: Context, client: TcpStream) -> io::Result<()> {
    let flow = context.flows.open(None, "proxy");
    let accepted_on = client.local_addr()?;
    context.owners.identify(&flow, &client, accepted_on);
    Session::new(context, client, Vec::new(), Role::Proxy, accepted_on, flow, None).serve().await
}

/// Serves a client that believes it speaks to `flow.destination`.
pub async fn serve_transparent(context: Context, flow: HttpFlow) -> io::Result<()> {
    let HttpFlow { client, first_bytes, destination, flow, upstream } = flow;
    let accepted_on = client.local_addr()?;
    let role = Role::Transparent(destination);
    Session::new(context, client, first_bytes, role, accepted_on, flow, upstream).serve().await
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Route {
    destination: Destination,
    accepted_on: SocketAddr,
}
