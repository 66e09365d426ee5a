//! The session's state machine.
//!
//! - `application`: what the program's side does with streams.
//! - `frames`: what the far end says.
//! - `transmit`: what goes out, and over which subflow.
//! - `lease`: which subflows a stream uses.
//! - `recovery`: what is sent again elsewhere.
//! - `plan`: which paths a device uses.
//! - `aggregate`: which ones transfers get beside the first.
//! - `probe`: what is asked of paths.
//! - `proof`: whether one that failed is good again.
//! - `flow`: counts over all streams.

mod aggregate;
mod application;
mod flow;
mod frames;
mod lease;
mod path_use;
mod plan;
mod probe;
mod proof;
mod recovery;
mod status;
#[cfg(test)]
mod tests;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use self::flow::{Flow, Numbers};
use self::path_use::Plan;
use super::action::{Action, Event, Violation};
use super::config::{Limits, Role, SessionConfig, StreamClass};
use super::rhythm::Rhythm;
use super::scheduler::{Scheduler, SchedulerKind};
use super::stream::{Freed, Receiver, Sender, Slots};
use super::subflow::{Subflow, SubflowId, SubflowSample};
use super::wire::{Destination, OpenResult, Standing, StreamId};
use crate::paths::PathId;
use crate::units::Timestamp;

pub use status::{Carried, PathObservation, StreamStatus, SubflowStatus, WindowCounts};

/// An acknowledgment waits so long for data to go along with.
const ACK_DELAY: Duration = Duration::from_millis(25);

/// An acknowledgment waits for no more bytes than this: two full DATA frames.
const ACK_EVERY: u64 = 32 << 10;

/// What a device and a relay share: streams over subflows.
#[derive(Debug)]
pub struct Session {
    role: Role,
    config: SessionConfig,
    streams: BTreeMap<StreamId, Stream>,
    numbers: Numbers,
    flow: Flow,
    /// Subflows that are up, by slot.
    slots: Vec<Option<Subflow>>,
    by_id: BTreeMap<SubflowId, usize>,
    next_subflow: u64,
    next_ping: u64,
    /// Rises whenever the set of subflows that may be used changes.
    epoch: u64,
    /// Streams with something to send, outstanding or expected.
    busy: BTreeSet<StreamId>,
    /// Subflows that the far end calls suspect since streams last looked for theirs.
    suspected: Slots,
    /// Streams are to look for their subflows anew, once for all that a subflow brought together.
    is_replan_due: bool,
    /// The path that brought something original last (M1).
    heard_on: Option<PathId>,
    /// Streams that wait for the session's window.
    blocked: BTreeSet<StreamId>,
    /// The one that it stopped first, and that goes on first.
    blocked_first: StreamId,
    /// Streams that wait for room in the buffers of all streams.
    starved: BTreeSet<StreamId>,
    /// Bytes in the send buffers of all streams.
    send_buffered: u64,
    /// Those beyond what every stream may hold.
    send_pooled: u64,
    /// How subflows may be used, where the far end is to be told (device).
    standings: BTreeMap<SubflowId, Standing>,
    /// What it was told, and over which subflow; said again when that one fails.
    told: BTreeMap<SubflowId, (Standing, usize)>,
    /// PRIORITYs said, by which the far end knows the latest.
    next_standing: u64,
    plan: Plan,
    /// Streams that are over, of which the far end may not know.
    unsaid: BTreeSet<StreamId>,
    is_draining: bool,
    /// What the far end did to the session: its counts may be half-way, and nothing more is taken.
    broken: Option<Violation>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// When a stream has waited long enough for a better subflow.
    patience: Option<Timestamp>,
    /// When to look for what is held up.
    recovery_at: Option<Timestamp>,
    /// The stream behind the last one that was looked at for that.
    recovery_next: StreamId,
    /// Used again and again, so that acknowledgments allocate nothing.
    freed: Vec<Freed>,
}

/// One stream at this end.
#[derive(Debug)]
struct Stream {
    destination: Destination,
    class: StreamClass,
    relay_scheduler: SchedulerKind,
    scheduler: Box<dyn Scheduler>,
    sender: Sender,
    receiver: Receiver,
    /// What it counts as in the session's pool of windows.
    promised: u64,
    /// Whether the relay is known to have heard of it.
    is_confirmed: bool,
    /// Subflows that carried its OPEN.
    opened_on: Slots,
    /// What became of the destination (relay).
    result: Option<OpenResult>,
    needs_opened: bool,
    /// This end gave it up; the far end has to agree.
    reset: Option<u64>,
    needs_reset: bool,
    needs_ack: bool,
    /// Bytes that came into order since the last acknowledgment.
    unacked: u64,
    /// Subflows that carried something else than data, which would be lost with them.
    spoke_on: Slots,
    /// When it brought data last.
    last_data: Option<Timestamp>,
    rhythm: Rhythm,
    /// The subflow that brought something last, and when.
    arrived_on: Option<usize>,
    arrived_at: Timestamp,
    /// One subflow of each path that serves it.
    leases: Vec<(PathId, usize)>,
    lease_epoch: u64,
    /// Subflows in whose rings it stands.
    queued: Slots,
    busy_since: Option<Timestamp>,
    wants_room: bool,
    /// Since when it waits for a better subflow.
    waiting_since: Option<Timestamp>,
    /// The subflow on which more is expected.
    expecting_on: Option<usize>,
    is_end_read: bool,
    carried: Vec<Carried>,
}

impl Stream {
    fn new(
        destination: Destination,
        class: StreamClass,
        own: SchedulerKind,
        relay_scheduler: SchedulerKind,
        limits: &Limits,
        now: Timestamp,
    ) -> Self {
        Self {
            destination,
            class,
            relay_scheduler,
            scheduler: own.build(),
            sender: Sender::new(),
            receiver: Receiver::new(limits.receive_per_stream, now),
            promised: 0,
            is_confirmed: false,
            opened_on: Slots::NONE,
            result: None,
            needs_opened: false,
            reset: None,
            needs_reset: false,
            needs_ack: false,
            unacked: 0,
            spoke_on: Slots::NONE,
            last_data: None,
            rhythm: Rhythm::default(),
            arrived_on: None,
            arrived_at: now,
            leases: Vec::new(),
            lease_epoch: 0,
            queued: Slots::NONE,
            busy_since: None,
            wants_room: false,
            waiting_since: None,
            expecting_on: None,
            is_end_read: false,
            carried: Vec::new(),
        }
    }

    /// The far end spoke of it on this subflow.
    fn note_arrival(&mut self, slot: usize, now: Timestamp) {
        (self.arrived_on, self.arrived_at) = (Some(slot), now);
    }

    /// Whether it has something to say besides data.
    fn has_control(&self) -> bool {
        self.needs_ack || self.needs_opened || self.needs_reset || !self.is_confirmed
    }

    /// Whether it has data that may go out.
    fn can_send(&self) -> bool {
        let is_open = self.reset.is_none();
        is_open && (self.sender.can_send() || (self.scheduler.is_redundant() && self.sender.has_work()))
    }

    /// Grants the first window.
    fn grant_first(&mut self, flow: &mut Flow) {
        self.receiver.grant_first(flow.first_room());
        self.note_promised(flow);
    }

    /// The window to tell the far end.
    fn grant(&mut self, flow: &mut Flow) -> u64 {
        let window = self.receiver.grant(flow.room(self.promised));
        self.note_promised(flow);
        window
    }

    /// Whether the far end should hear of a wider window.
    fn wants_grant(&self, flow: &Flow) -> bool {
        self.receiver.wants_grant(flow.room(self.promised))
    }

    /// Something was granted, read, or given up.
    fn note_promised(&mut self, flow: &mut Flow) {
        let promised = if self.reset.is_some() { 0 } else { self.receiver.promised() };
        flow.handle_promised(self.promised, promised);
        self.promised = promised;
    }

    /// Whether both directions ended and nothing is owed.
    fn is_over(&self) -> bool {
        self.sender.is_done() && self.is_end_read && !self.needs_ack && self.reset.is_none()
    }
}

impl Session {
    /// A session without subflows. A device asks for the first one once it has paths.
    pub fn new(role: Role, config: SessionConfig, _now: Timestamp) -> Self {
        let flow = Flow::new(&config.limits);
        Self {
            role,
            streams: BTreeMap::new(),
            numbers: Numbers::default(),
            flow,
            slots: Vec::new(),
            by_id: BTreeMap::new(),
            next_subflow: 0,
            next_ping: 0,
            next_standing: 0,
            epoch: 1,
            busy: BTreeSet::new(),
            suspected: Slots::NONE,
            is_replan_due: false,
            heard_on: None,
            blocked: BTreeSet::new(),
            blocked_first: StreamId(0),
            starved: BTreeSet::new(),
            send_buffered: 0,
            send_pooled: 0,
            standings: BTreeMap::new(),
            told: BTreeMap::new(),
            plan: Plan::new(),
            unsaid: BTreeSet::new(),
            is_draining: false,
            broken: None,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            patience: None,
            recovery_at: None,
            recovery_next: StreamId(0),
            freed: Vec::new(),
            config,
        }
    }

    /// A subflow may carry frames from now on: on the device the HELLO is written in front of them,
    /// on the relay it was accepted. A relay names paths by the number in the HELLO.
    ///
    /// The engine keeps to [`Limits::subflows`]; a number that is up already, or one too many, is
    /// not taken.
    pub fn handle_subflow_up(&mut self, id: SubflowId, path: PathId, backup: bool, now: Timestamp) {
        let most = self.config.limits.subflows.min(Limits::MOST_SUBFLOWS);
        if self.by_id.contains_key(&id) || self.by_id.len() >= most {
            return;
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Subflow::new(id, path, backup, now));
        self.by_id.insert(id, slot);
        self.plan_subflow_up(slot);
        // While nothing better was up, sockets of failed paths took what was to be said.
        for suspect in self.suspects().iter() {
            self.repeat_control(suspect);
        }
        self.replan(now);
        self.plan_paths(now);
    }

    /// A subflow is closed, failed, or could not be opened. What it carried goes elsewhere.
    pub fn handle_subflow_down(&mut self, id: SubflowId, now: Timestamp) {
        let slot = self.by_id.get(&id).copied();
        let was_answered =
            slot.and_then(|slot| self.subflow(slot)).is_some_and(|subflow| subflow.is_answered);
        if self.role == Role::Device && slot.is_some() {
            self.standings.insert(id, Standing::Gone);
        }
        let path = self.remove_subflow(id, now);
        self.plan_subflow_down(id, path, was_answered, now);
        self.plan_paths(now);
    }

    /// The kernel's view of a subflow; a few times per round trip while it is busy.
    pub fn handle_sample(&mut self, id: SubflowId, sample: &SubflowSample, now: Timestamp) {
        if let Some(subflow) = self.by_id.get(&id).and_then(|slot| self.slots[*slot].as_mut()) {
            let before = std::mem::replace(&mut subflow.sample, *sample);
            let path = subflow.path;
            self.weigh(id, path, &before, now);
        }
    }

    /// The time has come that [`Self::poll_timeout`] named. Subflows are to be asked again afterwards.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.patience.is_some_and(|at| at <= now) {
            self.patience = None;
        }
        for subflow in self.slots.iter_mut().flatten() {
            subflow.handle_ack_timeout(now);
        }
        if self.recovery_at.is_some_and(|at| at <= now) {
            self.recover(now);
        }
        self.plan_paths(now);
    }

    /// When [`Self::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let acks = self.slots.iter().flatten().filter_map(|subflow| subflow.ack_deadline);
        acks.chain(self.patience).chain(self.recovery_at).chain(self.plan.next_at).min()
    }

    /// Something to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Something to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What the session was made with.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    fn subflow(&self, slot: usize) -> Option<&Subflow> {
        self.slots.get(slot)?.as_ref()
    }

    fn subflow_mut(&mut self, slot: usize) -> Option<&mut Subflow> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Takes a subflow away and sends again what it carried.
    fn remove_subflow(&mut self, id: SubflowId, now: Timestamp) -> Option<PathId> {
        let slot = self.by_id.remove(&id)?;
        let gone = self.slots[slot].take()?;
        self.standings.retain(|subflow, standing| *subflow != id || *standing == Standing::Gone);
        self.told.remove(&id);
        self.leave_slot(slot, now);
        Some(gone.path)
    }

    /// Sends over other subflows what the one in `slot` carried.
    fn leave_slot(&mut self, slot: usize, now: Timestamp) {
        self.epoch += 1;
        let suspects = self.suspects();
        for stream in self.streams.values_mut() {
            stream.queued = stream.queued.without(slot);
            stream.leases.retain(|(_, leased)| *leased != slot);
            stream.sender.handle_slot_down(slot, suspects);
            if stream.arrived_on == Some(slot) {
                stream.arrived_on = None;
            }
            if stream.expecting_on == Some(slot) {
                stream.expecting_on = None;
            }
        }
        self.repeat_control(slot);
        self.replan(now);
    }
}
