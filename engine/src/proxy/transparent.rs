//! Flows whose protocol shows only in their first bytes: intercepted connections, and what comes
//! through SOCKS.

use std::io;
use std::net::SocketAddr;

use multiway_api::status::Treatment;
use multiway_core::flow::classify::{Classified, SERVER_FIRST_WAIT, classify};
use multiway_core::flow::names::HostName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::bonded::Bonded;
use super::relay::{relay, reset};
use super::tunnel::{Destination, Dial, Upstream, dial};
use super::{bonded, http};
use crate::context::Context;
use crate::flows::FlowHandle;

/// Bytes read at a time while a flow is not classified.
const PEEK: usize = 4096;

/// A client and where it wants to go.
pub(super) struct Flow {
    pub(super) client: TcpStream,
    pub(super) destination: Destination,
    pub(super) flow: FlowHandle,
}

/// A flow that turned out to be HTTP.
#[derive(Debug)]
pub struct HttpFlow {
    /// The client.
    pub client: TcpStream,
    /// What it has sent so far, taken from its connection already.
    pub first_bytes: Vec<u8>,
    /// Where it wanted to go.
    pub destination: Destination,
    /// Its place in the table of flows.
    pub flow: FlowHandle,
    /// A connection to the destination on which nothing was sent yet, when the client spoke only
    /// after one had been opened.
    pub upstream: Option<Upstream>,
}

/// Serves one redirected connection.
pub(super) async fn serve(context: Context, client: TcpStream, original: SocketAddr) -> io::Result<()> {
    let original = SocketAddr::new(original.ip().to_canonical(), original.port());
    let shown = match context.resolver.name_of(original.ip()) {
        Some(name) => format!("{name}:{}", original.port()),
        None => original.to_string(),
    };
    let flow = context.flows.open(None, shown);
    context.owners.identify(&flow, &client, original);
    let flow = Flow { client, destination: Destination::Address(original), flow };
    let mut first = Vec::new();
    let deadline = Instant::now() + SERVER_FIRST_WAIT;
    let class = read_class(&flow.client, &mut first, deadline).await?;
    if class == Classified::NeedMore && first.is_empty() {
        // The client may be waiting for the server to speak.
        match bonded::open(&context, &flow.destination, &[], &flow.flow).await {
            Bonded::Stream(stream) => return bonded::carry(flow.client, stream, &flow.flow).await,
            Bonded::Failed(_) => {
                reset(&flow.client);
                return Ok(());
            }
            Bonded::Steer => {}
        }
        let Some(upstream) = connect(&context, &flow, None).await else { return Ok(()) };
        return settle(context, flow, upstream).await;
    }
    dispatch(context, flow, first, class, None).await
}

/// Goes on with a connected flow of which nothing was heard: whoever speaks first decides.
pub(super) async fn settle(context: Context, flow: Flow, upstream: Upstream) -> io::Result<()> {
    flow.flow.set_treatment(Treatment::Classifying, "neither side has spoken yet");
    tokio::select! {
        biased;
        _ = upstream.readable() => {
            flow.flow.set_treatment(Treatment::Steer, "the server spoke first: not HTTP");
            finish(&flow.destination, relay(flow.client, Vec::new(), upstream, &flow.flow).await)
        }
        readable = flow.client.readable() => {
            readable?;
            let mut first = Vec::new();
            let deadline = Instant::now() + SERVER_FIRST_WAIT;
            let class = read_class(&flow.client, &mut first, deadline).await?;
            dispatch(context, flow, first, class, Some(upstream)).await
        }
    }
}

/// Reads until the bytes show what they are, the client has no more to say, or `deadline`.
async fn read_class(client: &TcpStream, first: &mut Vec<u8>, deadline: Instant) -> io::Result<Classified> {
    loop {
        first.reserve(PEEK);
        match client.try_read_buf(first) {
            Ok(0) => return Ok(Classified::Other),
            Ok(_) => {
                let class = classify(first);
                if class != Classified::NeedMore {
                    return Ok(class);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if timeout_at(deadline, client.readable()).await.is_err() {
                    return Ok(Classified::NeedMore);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Hands HTTP on and tunnels everything else.
async fn dispatch(
    context: Context,
    flow: Flow,
    first_bytes: Vec<u8>,
    class: Classified,
    upstream: Option<Upstream>,
) -> io::Result<()> {
    let Flow { client, destination, flow } = flow;
    let (why, server_name) = match class {
        Classified::Http => {
            let http = HttpFlow { client, first_bytes, destination, flow, upstream };
            return http::serve_transparent(context, http).await;
        }
        Classified::Tls { server_name } => ("TLS: encrypted end to end", server_name),
        Classified::Dns => ("DNS over TCP", None),
        Classified::Other | Classified::NeedMore => ("neither HTTP nor TLS", None),
    };
    if let Some(name) = &server_name {
        flow.set_destination(format!("{name}:{}", destination.port()));
    }
    let flow = Flow { client, destination, flow };
    if upstream.is_none() {
        match bonded::open(&context, &flow.destination, &first_bytes, &flow.flow).await {
            Bonded::Stream(stream) => return bonded::carry(flow.client, stream, &flow.flow).await,
            Bonded::Failed(_) => {
                reset(&flow.client);
                return Ok(());
            }
            Bonded::Steer => {}
        }
    }
    flow.flow.set_treatment(Treatment::Steer, why);
    let upstream = match upstream {
        Some(upstream) => upstream,
        None => match connect(&context, &flow, server_name.as_ref()).await {
            Some(upstream) => upstream,
            None => return Ok(()),
        },
    };
    finish(&flow.destination, relay(flow.client, first_bytes, upstream, &flow.flow).await)
}

/// Connects a redirected flow; on failure its client hears what it would have heard: a reset.
async fn connect(context: &Context, flow: &Flow, server_name: Option<&HostName>) -> Option<Upstream> {
    let accepted_on = match flow.client.local_addr() {
        Ok(address) => address,
        Err(_) => return None,
    };
    let target = Dial { destination: &flow.destination, server_name, accepted_on };
    match dial(context, target).await {
        Ok(upstream) => Some(upstream),
        Err(error) => {
            tracing::debug!(destination = %flow.destination, %error, "a flow could not be connected");
            flow.flow.set_treatment(Treatment::Steer, error.to_string());
            reset(&flow.client);
            None
        }
    }
}

/// A tunnel that ended in a reset was passed on as such and is no fault of the proxy.
fn finish(destination: &Destination, outcome: io::Result<()>) -> io::Result<()> {
    if let Err(error) = outcome {
        tracing::trace!(%destination, %error, "a tunnel was reset");
    }
    Ok(())
}
