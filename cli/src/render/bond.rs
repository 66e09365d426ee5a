//! What goes through a relay.

use multiway_api::{HandoverStatus, RelayStatus, SessionStatus, StreamStatus, SubflowStatus};

use super::{cut, duration, printable, table, time_of_day, unknown};
use crate::units;

/// Streams shown of one session; `--json` has all.
const STREAMS_SHOWN: usize = 20;

/// Handovers shown; older ones are in the log.
const HANDOVERS_SHOWN: usize = 5;

/// A relay with its sessions and handovers.
pub(super) fn relay(relay: &RelayStatus) -> String {
    let state = match &relay.reason {
        _ if relay.reachable => "reachable".to_owned(),
        Some(reason) => format!("not reachable: {}", printable(reason)),
        None => "not reachable".to_owned(),
    };
    let user = printable(&relay.user);
    let mut text = format!("relay {} as {user:?}: {state}\n", printable(&relay.address));
    for session in &relay.sessions {
        text.push_str(&self::session(session));
    }
    let handovers = &relay.handovers[relay.handovers.len().saturating_sub(HANDOVERS_SHOWN)..];
    if !handovers.is_empty() {
        text.push_str("handovers:\n");
        text.push_str(&self::handovers(handovers));
    }
    text
}

fn session(session: &SessionStatus) -> String {
    let active = session.active.as_deref().map_or_else(unknown, printable);
    let draining = if session.draining { ", running dry: the relay stops" } else { "" };
    let (count, age) = (session.streams.len(), duration(session.age_seconds as u64));
    let streams_in_words = if count == 1 { "1 stream".to_owned() } else { format!("{count} streams") };
    let mut text = format!("session of {age} over {active}, {streams_in_words}{draining}\n");
    if !session.subflows.is_empty() {
        text.push_str(&subflows(&session.subflows));
    }
    if !session.streams.is_empty() {
        text.push_str(&streams(&session.streams[..count.min(STREAMS_SHOWN)]));
    }
    if count > STREAMS_SHOWN {
        text.push_str(&format!("and {} more streams\n", count - STREAMS_SHOWN));
    }
    text
}

fn subflows(subflows: &[SubflowStatus]) -> String {
    let mut table = table(&["SUBFLOW", "PATH", "STATE", "PRIORITY", "RTT", "SENT", "RECEIVED"]);
    for subflow in subflows {
        table.add_row([
            subflow.id.to_string(),
            printable(&subflow.interface),
            subflow.state.to_string(),
            subflow.priority.to_string(),
            subflow.rtt_ms.map_or_else(unknown, |rtt| format!("{rtt:.1} ms")),
            units::bytes(subflow.bytes_sent),
            units::bytes(subflow.bytes_received),
        ]);
    }
    format!("{table}\n")
}

fn streams(streams: &[StreamStatus]) -> String {
    let mut table = table(&["STREAM", "DESTINATION", "SCHEDULER", "SENT/RECEIVED PER PATH"]);
    for stream in streams {
        let carried = stream.paths.iter().map(|path| {
            let (sent, received) = (units::bytes(path.bytes_sent), units::bytes(path.bytes_received));
            format!("{} {sent}/{received}", printable(&path.interface))
        });
        table.add_row([
            stream.id.to_string(),
            cut(&stream.destination),
            stream.scheduler.to_string(),
            carried.collect::<Vec<_>>().join(", "),
        ]);
    }
    format!("{table}\n")
}

fn handovers(handovers: &[HandoverStatus]) -> String {
    let line = |handover: &HandoverStatus| {
        let (from, to) = (printable(&handover.from), printable(&handover.to));
        format!("{}  {from} to {to}, gap {} ms\n", time_of_day(handover.unix_ms), handover.gap_ms)
    };
    handovers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use multiway_api::{Scheduler, StreamPath, SubflowPriority, SubflowState};

    use super::*;

    fn stream(id: u64) -> StreamStatus {
        StreamStatus {
            id,
            destination: "example.org:22".into(),
            scheduler: Scheduler::Priority,
            paths: vec![
                StreamPath { interface: "wlan0".into(), bytes_sent: 1_500, bytes_received: 20_000 },
                StreamPath { interface: "wwan0".into(), bytes_sent: 0, bytes_received: 4_000 },
            ],
        }
    }

    fn sample() -> RelayStatus {
        RelayStatus {
            address: "relay.example.org:443".into(),
            user: "ada\u{1b}".into(),
            reachable: true,
            reason: None,
            sessions: vec![SessionStatus {
                age_seconds: 75.5,
                draining: false,
                active: Some("wlan0".into()),
                subflows: vec![SubflowStatus {
                    id: 3,
                    interface: "wwan0".into(),
                    state: SubflowState::Suspect,
                    priority: SubflowPriority::Backup,
                    rtt_ms: Some(61.04),
                    bytes_sent: 1_000,
                    bytes_received: 2_000,
                }],
                streams: vec![stream(8)],
            }],
            handovers: vec![HandoverStatus {
                unix_ms: 3_661_000,
                from: "wlan0".into(),
                to: "wwan0".into(),
                gap_ms: 187,
            }],
        }
    }

    #[test]
    fn a_relay_shows_sessions_subflows_streams_and_handovers() {
        let text = relay(&sample());
        for part in [
            "relay relay.example.org:443 as ",
            ": reachable\n",
            "session of 1 min 15 s over wlan0, 1 stream\n",
            "suspect",
            "backup",
            "61.0 ms",
            "example.org:22",
            "priority",
            "wlan0 1.5 kB/20.0 kB, wwan0 0 B/4.0 kB",
            "01:01:01Z  wlan0 to wwan0, gap 187 ms",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_relay_that_is_not_reached_says_why_and_many_streams_are_counted() {
        let mut lost = sample();
        (lost.reachable, lost.reason) = (false, Some("no network leads to it".into()));
        lost.sessions[0].streams = (0..25).map(stream).collect();
        let text = relay(&lost);
        assert!(text.contains(": not reachable: no network leads to it\n"), "{text}");
        assert!(text.contains("25 streams\n") && text.contains("and 5 more streams\n"), "{text}");
        assert_eq!(text.matches("example.org:22").count(), STREAMS_SHOWN);
    }
}
