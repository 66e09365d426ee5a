//! Flows through the relay.

use std::io;

use multiway_api::status::Treatment;
use multiway_core::bond::wire::OpenResult;
use tokio::net::TcpStream;

use super::tunnel::Destination;
use crate::bond::shared::StreamOver;
use crate::bond::stream::BondStream;
use crate::context::Context;
use crate::flows::FlowHandle;

/// A stream to `destination` with `first` in it, once the relay has connected it. `None` when the flow is
/// to be steered, for whatever reason; then nothing of it has reached the destination.
pub(super) async fn open(
    context: &Context,
    destination: &Destination,
    first: &[u8],
    flow: &FlowHandle,
) -> Option<BondStream> {
    let bond = context.bond.current()?;
    let stream = match bond.open(destination) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%destination, %error, "a flow is not bonded");
            return None;
        }
    };
    flow.set_treatment(Treatment::Bond, format!("carried by the relay {}", bond.invite().address));
    // It travels with the stream's beginning, so that the relay's answer is the destination's.
    let sent = stream.send(bytes::Bytes::copy_from_slice(first)).await;
    let opened = match sent {
        Ok(()) => stream.opened().await,
        Err(over) => Err(over),
    };
    match opened {
        Ok(OpenResult::Connected) => Some(stream),
        // The plain network may reach it, or tell better why not.
        Ok(result) => {
            tracing::debug!(%destination, ?result, "the relay did not connect a flow");
            None
        }
        Err(StreamOver::Reset(_) | StreamOver::Refused(_) | StreamOver::Lost) => None,
    }
}

/// Carries a flow to its end.
pub(super) async fn carry(client: TcpStream, stream: BondStream, flow: &FlowHandle) -> io::Result<()> {
    let session = stream.session().clone();
    let down = |bytes| {
        if let Some(path) = session.last_path() {
            flow.add_bytes(path, bytes);
        }
    };
    if let Err(error) = stream.carry(&client, |_| (), down).await {
        tracing::trace!(%error, "a bonded flow was cut");
    }
    Ok(())
}
