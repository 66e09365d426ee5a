//! What the engine does for the sessions: hands on events, carries out actions, and fills sockets.

use multiway_core::bond::wire::{Frame, MAX_DATA_FRAME};
use multiway_core::bond::{Action, Event};

use super::network::{Connection, Payload, Syn};
use super::{DEVICE, RELAY, World};

impl World {
    pub(super) fn pump_events(&mut self) {
        for end in [DEVICE, RELAY] {
            while let Some(event) = self.sessions[end].poll_event() {
                self.dirty = true;
                let stream = match &event {
                    Event::StreamOpening { stream, .. }
                    | Event::StreamOpened { stream, .. }
                    | Event::Readable { stream }
                    | Event::Writable { stream }
                    | Event::StreamClosed { stream }
                    | Event::StreamReset { stream, .. } => *stream,
                    _ => {
                        if end == DEVICE {
                            self.outcome.events.push((self.now.since_origin(), event));
                        }
                        continue;
                    }
                };
                let Some(index) = self.by_stream.get(&stream.0).copied() else {
                    return self.fault(format!("end {end} tells of {stream}, which nobody opened"));
                };
                if let Err(what) = self.programs[index].handle_event(end, &event, self.now) {
                    self.fault(format!("{stream} at end {end} {what} ({event:?})"));
                }
            }
        }
    }

    pub(super) fn pump_actions(&mut self) {
        while let Some(action) = self.sessions[DEVICE].poll_action() {
            self.dirty = true;
            match action {
                Action::OpenSubflow { id, path, backup, .. } => {
                    let Some(path) = self.paths.iter().position(|known| known.id == path) else {
                        return self.fault(format!("opens {id} over {path:?}"));
                    };
                    if !self.offered[path] {
                        return self.fault(format!("opens {id} over a path that is not there"));
                    }
                    let subflow = self.connections.len();
                    self.outcome.opened[path] += 1;
                    let syn = Syn { begun: self.now, sent_at: self.now, round: 1, tries: 0 };
                    self.connections.push(Connection {
                        id,
                        path,
                        backup,
                        syn: Some(syn),
                        ends: [None, None],
                        is_cut: false,
                        tell_at: [None, None],
                    });
                    if self.by_id.insert(id, subflow).is_some() {
                        return self.fault(format!("{id} is opened twice"));
                    }
                    self.send(subflow, DEVICE, Payload::Syn(1));
                }
                Action::CloseSubflow { id, .. } => {
                    let Some(subflow) = self.by_id.get(&id).copied() else {
                        return self.fault(format!("closes {id}, which it never opened"));
                    };
                    let connection = &mut self.connections[subflow];
                    connection.syn = None;
                    match &mut connection.ends[DEVICE] {
                        Some(port) => {
                            port.is_closing = true;
                            let close = Frame::Close { code: 0, text: String::new() };
                            port.tcp.write(&close.to_bytes(), self.now);
                            port.tcp.close(self.now);
                        }
                        None => self.send(subflow, DEVICE, Payload::Reset),
                    }
                }
            }
        }
        while let Some(action) = self.sessions[RELAY].poll_action() {
            self.dirty = true;
            let Action::CloseSubflow { id, .. } = action else {
                return self.fault(format!("the relay wants {action:?}"));
            };
            if let Some(subflow) = self.by_id.get(&id).copied() {
                self.lose(subflow, RELAY);
            }
        }
    }

    /// Asks sessions for what subflows may send, and puts packets on the links.
    pub(super) fn pump_subflows(&mut self) {
        for subflow in 0..self.connections.len() {
            for end in [DEVICE, RELAY] {
                let connection = &mut self.connections[subflow];
                let id = connection.id;
                let Some(port) = &mut connection.ends[end] else { continue };
                let most = port.most_unsent();
                while port.is_attached && !port.is_closing && port.tcp.unsent() < most {
                    let Some(bytes) = self.sessions[end].poll_transmit(id, MAX_DATA_FRAME, self.now) else {
                        break;
                    };
                    self.dirty = true;
                    let checked = self.ledgers[end].handle_sent(&mut port.sent, bytes.clone());
                    port.tcp.write(&bytes, self.now);
                    if let Err(what) = checked {
                        return self.fault(format!("end {end} on {id} {what}"));
                    }
                }
                while let Some(port) = &mut self.connections[subflow].ends[end]
                    && let Some(packet) = port.tcp.poll_packet()
                {
                    self.send(subflow, end, Payload::Tcp(packet));
                }
            }
        }
    }
}
