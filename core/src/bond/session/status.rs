//! What detectors and people want to know.

use std::time::Duration;

use super::Session;
use crate::bond::config::{Role, StreamClass};
use crate::bond::scheduler::SchedulerKind;
use crate::bond::subflow::SubflowId;
use crate::bond::wire::{Destination, StreamId};
use crate::paths::PathId;
use crate::units::{Rate, Timestamp};

/// What a detector needs to know of a path's use by a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathObservation {
    /// When the oldest of what is outstanding on the path was sent; `None` when nothing is.
    pub outstanding_since: Option<Timestamp>,
    /// When the far end last acknowledged something that the path carries.
    pub last_ack_progress: Option<Timestamp>,
    /// When the path last brought any byte.
    pub last_received: Option<Timestamp>,
    /// Since when data is expected from the far end: of a stream that the path serves, the last
    /// data was not marked idle (M4). `None` when none is.
    pub expecting_since: Option<Timestamp>,
    /// When the next piece of a stream that brings them steadily is overdue; later with everything
    /// that the path brings. `None` when there is no such stream.
    pub overdue_at: Option<Timestamp>,
    /// The far end's retransmission timeout, as it last said (M4).
    pub far_timeout: Option<Duration>,
    /// The least smoothed round-trip time of the path's subflows.
    pub smoothed_rtt: Option<Duration>,
    /// Its mean deviation.
    pub rtt_variance: Option<Duration>,
    /// Subflows that are up.
    pub subflows: usize,
}

/// A subflow, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowStatus {
    /// Which.
    pub id: SubflowId,
    /// Its path.
    pub path: PathId,
    /// Whether it is a backup.
    pub backup: bool,
    /// Whether it has probably failed.
    pub suspect: bool,
    /// Bytes handed out for it, frames and all.
    pub sent: u64,
    /// Bytes that it brought.
    pub received: u64,
    /// Bytes that it carries and that are not acknowledged.
    pub outstanding: u64,
    /// Smoothed round-trip time; zero before the first sample.
    pub smoothed_rtt: Duration,
    /// Rate that it delivers.
    pub rate: Rate,
}

/// A stream, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStatus {
    /// Which.
    pub id: StreamId,
    /// Where to.
    pub destination: Destination,
    /// What for.
    pub class: StreamClass,
    /// How this end chooses among subflows.
    pub scheduler: SchedulerKind,
    /// What each path carried of it, the first one used first.
    pub carried: Vec<Carried>,
}

/// What a path carried of a stream, in bytes of the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The path.
    pub path: PathId,
    /// Sent over it, once more for each repetition.
    pub sent: u64,
    /// New ones that came over it.
    pub received: u64,
}

/// What a session's window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCounts {
    /// Bytes that this end has sent, each once.
    pub sent: u64,
    /// Bytes that came, each once, and those that will not come because their stream was reset.
    pub received: u64,
    /// Those that were read or given up.
    pub read: u64,
    /// Bytes beyond each stream's first 64 KiB that this end has granted and that were not read.
    pub promised: u64,
}

impl Carried {
    /// Counts what a path carried.
    pub(super) fn add(carried: &mut Vec<Self>, path: PathId, sent: u64, received: u64) {
        match carried.iter_mut().find(|carried| carried.path == path) {
            Some(carried) => {
                carried.sent += sent;
                carried.received += received;
            }
            None => carried.push(Self { path, sent, received }),
        }
    }
}

impl Session {
    /// What a detector needs to know of a path.
    pub fn observe_path(&self, path: PathId) -> PathObservation {
        let mut observation = PathObservation::default();
        let earlier = |a: Option<Timestamp>, b: Option<Timestamp>| a.into_iter().chain(b).min();
        for subflow in self.slots.iter().flatten().filter(|subflow| subflow.path == path) {
            let expecting = !subflow.expecting.is_empty() && !self.flow.is_exhausted();
            observation.subflows += 1;
            observation.outstanding_since =
                earlier(observation.outstanding_since, subflow.outstanding_since());
            observation.last_ack_progress = observation.last_ack_progress.max(subflow.last_ack_progress);
            observation.last_received = observation.last_received.max(Some(subflow.last_received));
            observation.expecting_since =
                earlier(observation.expecting_since, expecting.then_some(subflow.expecting_since));
            observation.far_timeout = observation.far_timeout.max(subflow.far_timeout);
            let rtt = subflow.sample.smoothed_rtt;
            if !rtt.is_zero() && observation.smoothed_rtt.is_none_or(|least| rtt < least) {
                observation.smoothed_rtt = Some(rtt);
                observation.rtt_variance = Some(subflow.sample.rtt_variance);
            }
        }
        let Some(life) = observation.last_received else { return observation };
        for stream in self.streams.values().filter(|stream| stream.reset.is_none()) {
            // Of a stream that came by a path which is left, nobody knows by which it comes next.
            let came_by = stream.arrived_on.and_then(|slot| self.subflow(slot));
            let came_by = came_by.filter(|subflow| !subflow.is_suspect).map(|subflow| subflow.path);
            if came_by.is_none_or(|by| by == path) {
                observation.overdue_at = earlier(observation.overdue_at, stream.rhythm.overdue_at(life));
            }
        }
        observation
    }

    /// The subflows, for people.
    pub fn subflows(&self) -> Vec<SubflowStatus> {
        let status = |subflow: &crate::bond::subflow::Subflow| SubflowStatus {
            id: subflow.id,
            path: subflow.path,
            backup: subflow.is_backup,
            suspect: subflow.is_suspect,
            sent: subflow.sent,
            received: subflow.received,
            outstanding: subflow.in_flight,
            smoothed_rtt: subflow.sample.smoothed_rtt,
            rate: subflow.sample.delivery_rate,
        };
        self.slots.iter().flatten().map(status).collect()
    }

    /// Subflows that were asked for and are not up yet, with their paths (device).
    pub fn opening(&self) -> Vec<(SubflowId, PathId)> {
        self.plan.opening()
    }

    /// The streams that are not over, for people.
    pub fn stream_statuses(&self) -> Vec<StreamStatus> {
        let status = |(&id, stream): (&StreamId, &super::Stream)| StreamStatus {
            id,
            destination: stream.destination.clone(),
            class: stream.class,
            scheduler: match self.role {
                Role::Device => self.config.device_schedulers.get(stream.class),
                Role::Relay => stream.relay_scheduler,
            },
            carried: stream.carried.clone(),
        };
        self.streams.iter().map(status).collect()
    }

    /// Whether the relay is known to have heard of a stream; false of one that is over (device).
    pub fn is_heard(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.is_confirmed)
    }

    /// Whether the relay goes away (device).
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Streams that are not over.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Bytes held: received and not read, and sent or to be sent and not acknowledged.
    pub fn held_bytes(&self) -> u64 {
        self.flow.held() + self.send_buffered
    }

    /// What the session's window counts.
    pub fn window_counts(&self) -> WindowCounts {
        self.flow.counts()
    }

    /// Which end this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The path that a device uses now.
    pub fn active_path(&self) -> Option<PathId> {
        self.plan.active_path()
    }
}
