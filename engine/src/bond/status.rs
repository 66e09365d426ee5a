//! A session in the words of the API.

use std::time::Duration;

use multiway_api as api;
use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::{Session, StreamStatus, SubflowStatus};
use multiway_core::paths::PathId;

/// A session that began `age` ago; `interface_of` names a path.
pub(super) fn session(
    session: &Session,
    age: Duration,
    interface_of: &impl Fn(PathId) -> String,
) -> api::SessionStatus {
    let opening = session.opening().into_iter().map(|(id, path)| api::SubflowStatus {
        id: id.0,
        interface: interface_of(path),
        state: api::SubflowState::Opening,
        priority: api::SubflowPriority::Normal,
        rtt_ms: None,
        bytes_sent: 0,
        bytes_received: 0,
    });
    let mut subflows: Vec<_> =
        session.subflows().iter().map(|status| subflow(status, interface_of)).collect();
    subflows.extend(opening);
    subflows.sort_by_key(|subflow| subflow.id);
    api::SessionStatus {
        age_seconds: age.as_secs_f64(),
        draining: session.is_draining(),
        active: session.active_path().map(interface_of),
        subflows,
        streams: session.stream_statuses().iter().map(|status| stream(status, interface_of)).collect(),
    }
}

fn subflow(status: &SubflowStatus, interface_of: &impl Fn(PathId) -> String) -> api::SubflowStatus {
    let is_measured = !status.smoothed_rtt.is_zero();
    api::SubflowStatus {
        id: status.id.0,
        interface: interface_of(status.path),
        state: if status.suspect { api::SubflowState::Suspect } else { api::SubflowState::Up },
        priority: if status.backup { api::SubflowPriority::Backup } else { api::SubflowPriority::Normal },
        rtt_ms: is_measured.then_some(status.smoothed_rtt.as_secs_f64() * 1000.0),
        bytes_sent: status.sent,
        bytes_received: status.received,
    }
}

fn stream(status: &StreamStatus, interface_of: &impl Fn(PathId) -> String) -> api::StreamStatus {
    let paths = status.carried.iter().map(|carried| api::StreamPath {
        interface: interface_of(carried.path),
        bytes_sent: carried.sent,
        bytes_received: carried.received,
    });
    api::StreamStatus {
        id: status.id.0,
        destination: status.destination.to_string(),
        scheduler: scheduler(status.scheduler),
        paths: paths.collect(),
    }
}

fn scheduler(kind: SchedulerKind) -> api::Scheduler {
    match kind {
        SchedulerKind::MinRtt => api::Scheduler::MinRtt,
        SchedulerKind::LastReceived => api::Scheduler::LastReceived,
        SchedulerKind::Ecf => api::Scheduler::Ecf,
        SchedulerKind::Blest => api::Scheduler::Blest,
        SchedulerKind::Redundant => api::Scheduler::Redundant,
        SchedulerKind::Priority => api::Scheduler::Priority,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use multiway_core::bond::wire::{Destination, Host};
    use multiway_core::bond::{Action, Role, SessionConfig, StreamClass};
    use multiway_core::mphttp::download::PathOffer;
    use multiway_core::paths::PathEstimate;
    use multiway_core::units::Timestamp;

    use super::*;

    #[test]
    fn subflows_and_streams_are_named_by_interface_and_in_order() {
        let now = Timestamp::from_origin(Duration::from_secs(1));
        let mut device = Session::new(Role::Device, SessionConfig::handover(), now);
        let offer = PathOffer { path: PathId(3), metered: false, estimate: PathEstimate::default() };
        device.handle_paths(&[offer], now);
        let opened = device.poll_action();
        let Some(Action::OpenSubflow { id, path, backup, .. }) = opened else { panic!("{opened:?}") };
        let name = |path: PathId| format!("if{}", path.0);
        let before = super::session(&device, Duration::from_secs(2), &name);
        assert_eq!(before.subflows[0].state, api::SubflowState::Opening);

        device.handle_subflow_up(id, path, backup, now);
        let host = Host::Name("example.org".to_owned());
        let destination = Destination { host, port: 22 };
        let stream = device.open_stream(destination, StreamClass::Auto, now).unwrap();
        device.send(stream, Bytes::from_static(b"hello"), now).unwrap();
        let sent = device.poll_transmit(id, 1 << 14, now).unwrap();
        let status = super::session(&device, Duration::from_secs(2), &name);
        assert_eq!(status.active.as_deref(), Some("if3"));
        let subflow = &status.subflows[0];
        assert_eq!((subflow.state, subflow.priority), (api::SubflowState::Up, api::SubflowPriority::Normal));
        assert_eq!((subflow.bytes_sent, subflow.rtt_ms), (sent.len() as u64, None));
        let stream = &status.streams[0];
        assert_eq!(
            (stream.destination.as_str(), stream.scheduler),
            ("example.org:22", api::Scheduler::Priority)
        );
        let expected = api::StreamPath { interface: "if3".into(), bytes_sent: 5, bytes_received: 0 };
        assert_eq!(stream.paths, [expected]);
    }
}
