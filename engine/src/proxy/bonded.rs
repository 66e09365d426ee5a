//! Flows through the relay.

use std::io;
use std::time::Duration;

use multiway_api::status::Treatment;
use multiway_core::bond::wire::OpenResult;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::relay::reset;
use super::tunnel::Destination;
use crate::bond::shared::StreamOver;
use crate::bond::stream::BondStream;
use crate::context::Context;
use crate::flows::FlowHandle;

/// How long a relay may take to show that it heard of a stream. A working one does so within a round
/// trip; a handover in between costs one or two seconds more (the slowest detector's 1.5 s, and the new
/// subflow's handshakes). What takes longer goes by the plain network if it still can.
const HEARD: Duration = Duration::from_secs(5);

/// How long it may take to say whether the destination was reached, once it heard of the stream: it gives
/// a lookup 10 s and connecting 15 s, and its answer may need a handover.
const OPENED: Duration = Duration::from_secs(30);

/// What becomes of a flow that might go through the relay.
#[derive(Debug)]
pub(super) enum Bonded {
    /// The relay connected it, and its first bytes are on the way.
    Stream(BondStream),
    /// It is to be steered; nothing of it has reached the destination.
    Steer,
    /// It failed, and some of it may have reached the destination: its client has to decide what then.
    Failed(&'static str),
}

/// A stream to `destination` with `first` in it, once the relay has connected it.
pub(super) async fn open(
    context: &Context,
    destination: &Destination,
    first: &[u8],
    flow: &FlowHandle,
) -> Bonded {
    let Some(bond) = context.bond.current() else { return Bonded::Steer };
    let stream = match bond.open(destination).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%destination, %error, "a flow is not bonded");
            return Bonded::Steer;
        }
    };
    flow.set_treatment(Treatment::Bond, format!("carried by the relay {}", bond.invite().address));
    let outcome = connected(stream, first, || bond.doubt()).await;
    match &outcome {
        Bonded::Stream(_) => {}
        Bonded::Steer => tracing::debug!(%destination, "the relay did not connect a flow"),
        Bonded::Failed(reason) => flow.set_treatment(Treatment::Bond, *reason),
    }
    outcome
}

/// Waits for the relay's word on a stream; `doubt` is told that it did not even hear of it. One that is
/// given up is reset.
async fn connected(stream: BondStream, first: &[u8], doubt: impl FnOnce()) -> Bonded {
    let given_up = |reason| if first.is_empty() { Bonded::Steer } else { Bonded::Failed(reason) };
    let answer = {
        let mut answer = std::pin::pin!(async {
            // They travel with the stream's beginning, so that the relay's answer is the destination's.
            stream.send(bytes::Bytes::copy_from_slice(first)).await?;
            stream.opened().await
        });
        match timeout(HEARD, &mut answer).await {
            Ok(answer) => Ok(answer),
            Err(_) if !stream.is_heard() => {
                doubt();
                return given_up("the relay does not answer");
            }
            Err(_) => timeout(OPENED, answer).await,
        }
    };
    match answer {
        Ok(Ok(OpenResult::Connected)) => Bonded::Stream(stream),
        // The plain network may reach it, or tell better why not.
        Ok(Ok(_) | Err(StreamOver::Refused(_))) => Bonded::Steer,
        Ok(Err(StreamOver::Reset(_) | StreamOver::Lost)) => given_up("the relay was lost meanwhile"),
        Err(_) => given_up("the relay does not say whether it reached the destination"),
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
    // From now on, so that a daemon that is killed ends it so too.
    reset(&client);
    if let Err(error) = stream.carry(&client, |_| (), down).await {
        tracing::trace!(%error, "a bonded flow was cut");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use multiway_core::bond::wire::{Data, Destination as WireDestination, Frame, Host, Mark, StreamId};
    use multiway_core::bond::{Role, Session, SessionConfig, StreamClass, SubflowId};
    use multiway_core::paths::PathId;
    use tokio::time::Instant;

    use super::*;
    use crate::bond::shared::SharedSession;

    /// A stream of a device with one subflow, behind which there is this test.
    fn stream() -> (SharedSession, BondStream) {
        let now = crate::paths::now();
        let mut session = Session::new(Role::Device, SessionConfig::handover(), now);
        session.handle_subflow_up(SubflowId(0), PathId(1), false, now);
        let (shared, _) = SharedSession::new(session);
        let destination = WireDestination { host: Host::Name("example.org".to_owned()), port: 22 };
        let stream = BondStream::open(shared.clone(), destination, StreamClass::Auto).unwrap();
        (shared, stream)
    }

    fn hear(session: &SharedSession, frame: &Frame) {
        let bytes = frame.to_bytes();
        session.with(|session, now| session.handle_received(SubflowId(0), bytes, now)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_hears_nothing_costs_five_seconds_and_then_the_plain_network_has_its_turn() {
        let begun = Instant::now();
        let (_session, silent) = stream();
        let mut is_doubted = false;
        assert!(matches!(connected(silent, b"", || is_doubted = true).await, Bonded::Steer));
        assert!(is_doubted);
        assert_eq!(begun.elapsed().as_secs(), HEARD.as_secs());
        // What may have been delivered is not sent twice.
        let (_session, silent) = stream();
        assert!(matches!(connected(silent, b"GET /", || ()).await, Bonded::Failed(_)));
        assert_eq!(begun.elapsed().as_secs(), 2 * HEARD.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_takes_a_stream_has_time_to_reach_its_destination() {
        let begun = Instant::now();
        let (session, waiting) = stream();
        hear(&session, &Frame::Ack { stream: StreamId(0), data_ack: 0, window: 1 << 16 });
        let (outcome, ()) = tokio::join!(connected(waiting, b"", || ()), async {
            tokio::time::sleep(OPENED - Duration::from_secs(1)).await;
            hear(&session, &Frame::Opened { stream: StreamId(0), result: OpenResult::Connected });
        });
        assert!(matches!(outcome, Bonded::Stream(_)), "{outcome:?}");

        let (session, waiting) = stream();
        hear(&session, &Frame::Ack { stream: StreamId(0), data_ack: 0, window: 1 << 16 });
        assert!(matches!(connected(waiting, b"", || ()).await, Bonded::Steer));
        let in_all = begun.elapsed();
        assert!(in_all >= 2 * OPENED && in_all < 2 * OPENED + 2 * HEARD, "{in_all:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_relay_refuses_is_steered_and_what_it_loses_only_before_anything_was_sent() {
        let (session, refused) = stream();
        hear(&session, &Frame::Opened { stream: StreamId(0), result: OpenResult::Forbidden });
        assert!(matches!(connected(refused, b"GET /", || ()).await, Bonded::Steer));
        for (first, is_steered) in [(&b""[..], true), (b"GET /", false)] {
            let (session, lost) = stream();
            session.end(0, "");
            assert_eq!(matches!(connected(lost, first, || ()).await, Bonded::Steer), is_steered, "{first:?}");
        }
        let (session, early) = stream();
        let mark = Mark::default();
        let data = Data { stream: StreamId(0), dsn: 0, mark, bytes: bytes::Bytes::from_static(b"hello") };
        hear(&session, &Frame::Data(data));
        assert!(early.is_heard());
    }
}
