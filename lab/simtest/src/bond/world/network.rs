//! Subflows as the network sees them: handshakes, packets on links, and how connections end.

use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::wire::{Frame, FrameReader, Hello, HelloKind, HelloOk, SessionKey, VERSION};
use multiway_core::bond::{Limits, SubflowId};
use multiway_core::paths::PathId;
use multiway_core::units::Timestamp;
use multiway_linksim::Link;

use super::{DEVICE, RELAY, World};
use crate::bond::scene::Death;
use crate::bond::tcp::{HEADER, Packet, Tcp};

/// As the engine does it: how often the kernel is asked about a subflow.
const SAMPLING: Duration = Duration::from_millis(100);

/// As the engine does it: a handshake is given up, and a silent connection.
const HANDSHAKE: Duration = Duration::from_secs(8);
const SILENCE: Duration = Duration::from_secs(60);

/// As the engine does it: how much may wait unsent in a socket.
const UNSENT_TIME: Duration = Duration::from_millis(20);
const UNSENT_LEAST: u64 = 8 * 1024;
const UNSENT_MOST: u64 = 256 * 1024;

const FIRST_SYN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a path carries.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Syn(u8),
    SynAck(u8),
    Tcp(Packet),
    Reset,
}

#[derive(Debug, Clone)]
pub(super) struct Parcel {
    pub(super) subflow: usize,
    pub(super) payload: Payload,
}

#[derive(Debug)]
pub(super) struct PathState {
    pub(super) id: PathId,
    /// From the device, and to it.
    pub(super) links: [Link<Parcel>; 2],
}

/// A subflow as the network sees it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: SubflowId,
    pub(super) path: usize,
    pub(super) backup: bool,
    pub(super) syn: Option<Syn>,
    pub(super) ends: [Option<End>; 2],
    /// Nothing arrives any more.
    pub(super) is_cut: bool,
    /// When an end hears that it is over.
    pub(super) tell_at: [Option<Timestamp>; 2],
}

#[derive(Debug)]
pub(super) struct Syn {
    pub(super) begun: Timestamp,
    pub(super) sent_at: Timestamp,
    pub(super) round: u8,
    pub(super) tries: u32,
}

/// One end of a connection and the task that carries frames.
#[derive(Debug)]
pub(super) struct End {
    pub(super) tcp: Tcp,
    /// Until the far end's first frame came.
    pub(super) greeting: Option<FrameReader>,
    pub(super) is_attached: bool,
    pub(super) is_closing: bool,
    pub(super) sample_at: Timestamp,
    pub(super) sent: FrameReader,
    pub(super) received: FrameReader,
}

impl Connection {
    /// When something is due.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = Timestamp> {
        let syn = self.syn.as_ref().map(|syn| {
            let again = syn.sent_at + FIRST_SYN_TIMEOUT * 2u32.pow(syn.tries);
            again.min(syn.begun + HANDSHAKE)
        });
        let tcps = self.ends.iter().flatten().flat_map(|end| {
            let silent = end.tcp.stalled_since().map(|since| since + SILENCE);
            end.tcp.poll_timeout().into_iter().chain(silent)
        });
        let samples = self.ends.iter().flatten();
        let samples = samples.filter(|end| end.is_attached).map(|end| end.sample_at);
        let told = self.tell_at.iter().flatten().copied();
        syn.into_iter().chain(tcps).chain(told).chain(samples)
    }
}

impl End {
    fn new(tcp: Tcp, now: Timestamp) -> Self {
        Self {
            tcp,
            greeting: Some(FrameReader::new()),
            is_attached: false,
            is_closing: false,
            sample_at: now + SAMPLING,
            sent: FrameReader::new(),
            received: FrameReader::new(),
        }
    }

    pub(super) fn most_unsent(&self) -> u64 {
        let sample = self.tcp.subflow_sample();
        let by_window = match sample.smoothed_rtt {
            Duration::ZERO => 0,
            rtt => (sample.congestion_window as f64 / rtt.as_secs_f64()) as u64,
        };
        let rate = sample.delivery_rate.bytes_per_second().max(by_window);
        ((rate as f64 * UNSENT_TIME.as_secs_f64()) as u64).clamp(UNSENT_LEAST, UNSENT_MOST)
    }
}

impl World {
    pub(super) fn send(&mut self, subflow: usize, end: usize, payload: Payload) {
        let path = self.connections[subflow].path;
        let size = match &payload {
            Payload::Tcp(packet) => packet.size(),
            _ => HEADER,
        };
        self.outcome.carried[path][end] += size;
        self.paths[path].links[end].handle_packet(self.now, size, Parcel { subflow, payload });
    }

    /// A parcel arrives at `end`.
    pub(super) fn deliver(&mut self, end: usize, Parcel { subflow, payload }: Parcel) {
        if self.connections[subflow].is_cut {
            return;
        }
        let rounds = self.scene.handshake_rounds;
        let connection = &mut self.connections[subflow];
        match payload {
            Payload::Syn(round) => {
                if round == rounds && connection.ends[RELAY].is_none() && connection.tell_at[RELAY].is_none()
                {
                    connection.ends[RELAY] = Some(End::new(Tcp::new(None, self.now), self.now));
                }
                self.send(subflow, RELAY, Payload::SynAck(round));
            }
            Payload::SynAck(round) => {
                let Some(syn) = connection.syn.as_mut().filter(|syn| syn.round == round) else { return };
                if round < rounds {
                    *syn = Syn { round: round + 1, sent_at: self.now, tries: 0, begun: syn.begun };
                    self.send(subflow, DEVICE, Payload::Syn(round + 1));
                    return;
                }
                let rtt = (syn.tries == 0).then(|| self.now - syn.sent_at);
                connection.syn = None;
                let mut device = End::new(Tcp::new(rtt, self.now), self.now);
                let hello = Hello {
                    version: VERSION,
                    key: SessionKey([7; 16]),
                    subflow: connection.id,
                    path: connection.path as u32 + 1,
                    backup: connection.backup,
                    kind: HelloKind::Join,
                };
                device.tcp.write(&Frame::Hello(hello).to_bytes(), self.now);
                device.is_attached = true;
                connection.ends[DEVICE] = Some(device);
                let (id, path, backup) = (connection.id, self.paths[connection.path].id, connection.backup);
                self.sessions[DEVICE].handle_subflow_up(id, path, backup, self.now);
                let sample = self.connections[subflow].ends[DEVICE].as_ref();
                let sample = sample.map(|end| end.tcp.subflow_sample()).unwrap_or_default();
                self.sessions[DEVICE].handle_sample(id, &sample, self.now);
            }
            Payload::Reset => self.lose(subflow, end),
            Payload::Tcp(packet) => {
                let Some(receiver) = &mut connection.ends[end] else { return };
                receiver.tcp.handle_packet(packet, self.now);
                self.receive(subflow, end);
            }
        }
    }

    /// Takes in what arrived in order at an end.
    fn receive(&mut self, subflow: usize, end: usize) {
        let Some(port) = &mut self.connections[subflow].ends[end] else { return };
        let mut bytes = port.tcp.read();
        let delivered = port.tcp.delivered();
        let is_death =
            |death: &Death| death.subflow == subflow && death.end == end && death.after <= delivered;
        let death = self.deaths.iter().position(is_death).map(|at| self.deaths.swap_remove(at));
        if let Some(death) = death {
            let beyond = (delivered - death.after).min(bytes.len() as u64) as usize;
            bytes.truncate(bytes.len() - beyond);
        }
        while !bytes.is_empty() && self.outcome.faults.is_empty() {
            let piece = bytes.split_to(self.scene.piece.min(bytes.len()));
            self.take_in(subflow, end, piece);
        }
        if let Some(death) = death {
            self.connections[subflow].is_cut = true;
            self.connections[subflow].tell_at[1 - end] = death.other.map(|later| self.now + later);
            self.lose(subflow, end);
            return;
        }
        let is_closed =
            self.connections[subflow].ends[end].as_ref().is_some_and(|port| port.tcp.is_far_closed());
        if is_closed {
            self.lose(subflow, end);
        }
    }

    fn take_in(&mut self, subflow: usize, end: usize, bytes: Bytes) {
        let connection = &mut self.connections[subflow];
        let (id, path, backup) = (connection.id, self.paths[connection.path].id, connection.backup);
        let Some(port) = &mut connection.ends[end] else { return };
        if port.is_closing {
            return;
        }
        let mut bytes = bytes;
        if let Some(mut greeting) = port.greeting.take() {
            greeting.handle_bytes(bytes);
            match greeting.next_frame() {
                Ok(None) => {
                    port.greeting = Some(greeting);
                    return;
                }
                Ok(Some(Frame::Hello(_)))
                    if self.sessions[RELAY].subflows().len() >= Limits::MOST_SUBFLOWS =>
                {
                    self.lose(subflow, RELAY);
                    return self.send(subflow, RELAY, Payload::Reset);
                }
                Ok(Some(Frame::Hello(hello))) if end == RELAY && hello.subflow == id => {
                    port.is_attached = true;
                    let hello_ok = HelloOk {
                        version: VERSION,
                        max_streams: 1024,
                        max_subflows: 16,
                        linger_seconds: 60,
                        join_address: String::new(),
                    };
                    port.tcp.write(&Frame::HelloOk(hello_ok).to_bytes(), self.now);
                    self.sessions[RELAY].handle_subflow_up(id, path, backup, self.now);
                }
                Ok(Some(Frame::HelloOk(_))) if end == DEVICE => {}
                other => return self.fault(format!("{id} begins with {other:?}")),
            }
            bytes = greeting.into_rest();
        }
        let Some(port) = &mut self.connections[subflow].ends[end] else { return };
        self.ledgers[end].handle_received(&mut port.received, bytes.clone());
        if let Err(violation) = self.sessions[end].handle_received(id, bytes, self.now) {
            self.fault(format!("end {end} finds on {id}: {violation}"));
        }
        self.pump_events();
        // What it closed brings nothing more, even if it came at the same time.
        self.pump_actions();
    }

    /// An end's connection is over.
    pub(super) fn lose(&mut self, subflow: usize, end: usize) {
        let connection = &mut self.connections[subflow];
        connection.tell_at[end] = None;
        connection.syn = if end == DEVICE { None } else { connection.syn.take() };
        let gone = connection.ends[end].take();
        if end == RELAY {
            // A late copy of the handshake begins nothing.
            connection.is_cut |= gone.is_some();
        }
        let is_known = gone.is_none_or(|gone| gone.is_attached || end == DEVICE);
        if is_known {
            self.sessions[end].handle_subflow_down(connection.id, self.now);
        }
    }

    /// What time brings to a connection.
    pub(super) fn tend(&mut self, subflow: usize) {
        let now = self.now;
        let connection = &mut self.connections[subflow];
        if let Some(syn) = &mut connection.syn {
            if now - syn.begun >= HANDSHAKE {
                self.lose(subflow, DEVICE);
                return;
            }
            if now - syn.sent_at >= FIRST_SYN_TIMEOUT * 2u32.pow(syn.tries) {
                syn.tries += 1;
                syn.sent_at = now;
                let round = syn.round;
                self.send(subflow, DEVICE, Payload::Syn(round));
            }
        }
        for end in [DEVICE, RELAY] {
            let connection = &mut self.connections[subflow];
            if connection.tell_at[end].is_some_and(|at| at <= now) {
                self.lose(subflow, end);
                continue;
            }
            let Some(port) = &mut connection.ends[end] else { continue };
            if port.tcp.stalled_since().is_some_and(|since| now - since >= SILENCE) {
                self.lose(subflow, end);
                continue;
            }
            port.tcp.handle_timeout(now);
            if port.is_attached && port.sample_at <= now {
                port.sample_at = now + SAMPLING;
                let sample = port.tcp.subflow_sample();
                self.sessions[end].handle_sample(connection.id, &sample, now);
            }
            let is_done = port.is_closing && port.tcp.is_done();
            if is_done {
                connection.ends[end] = None;
            }
        }
    }
}
