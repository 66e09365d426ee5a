//! A whole session: the input is what the far end says on several subflows, and what this end's programs
//! and clock do meanwhile. Nothing panics, what is held stays bounded, what goes out is well formed, timers
//! pass, and what programs read is what came in order.

#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use multiway_core::bond::wire::{Destination, FrameReader, Host, OpenResult};
use multiway_core::bond::{
    Action, Event, Limits, Read, Role, Session, SessionConfig, StreamClass, StreamId, SubflowId,
    ViolationScope,
};
use multiway_core::mphttp::download::PathOffer;
use multiway_core::paths::{PathEstimate, PathId};
use multiway_core::units::Timestamp;

/// Small enough to be reached by what a fuzzer makes.
const LIMITS: Limits = Limits {
    streams: 4,
    subflows: 6,
    subflows_per_path: 3,
    receive_per_stream: 1 << 17,
    receive_in_all: 1 << 18,
    send_per_stream: 1 << 16,
    send_in_all: 1 << 17,
};

struct Bench {
    session: Session,
    readers: BTreeMap<SubflowId, FrameReader>,
    now: Timestamp,
    next: u64,
}

impl Bench {
    fn new(is_relay: bool, aggregate: bool) -> Self {
        let config = if aggregate { SessionConfig::aggregate() } else { SessionConfig::handover() };
        let role = if is_relay { Role::Relay } else { Role::Device };
        let now = Timestamp::from_origin(Duration::from_secs(1));
        let session = Session::new(role, SessionConfig { limits: LIMITS, ..config }, now);
        let mut bench = Self { session, readers: BTreeMap::new(), now, next: 100 };
        let offer =
            |path| PathOffer { path: PathId(path), metered: path == 2, estimate: PathEstimate::default() };
        if is_relay {
            bench.up(1);
            bench.up(2);
        } else {
            bench.session.handle_paths(&[offer(1), offer(2)], now);
            bench.open();
        }
        bench.drain();
        bench
    }

    fn up(&mut self, path: u32) {
        self.next += 1;
        self.session.handle_subflow_up(SubflowId(self.next), PathId(path), path == 2, self.now);
    }

    fn open(&mut self) {
        let destination = Destination { host: Host::Name("a.example".to_owned()), port: 1 };
        let _ = self.session.open_stream(destination, StreamClass::Auto, self.now);
    }

    /// As an engine does after every call.
    fn drain(&mut self) {
        let mut rounds = 0;
        while let Some(action) = self.session.poll_action() {
            rounds += 1;
            assert!(rounds < 100, "actions without end");
            match action {
                Action::OpenSubflow { id, path, backup, .. } => {
                    self.session.handle_subflow_up(id, path, backup, self.now);
                }
                Action::CloseSubflow { id, .. } => self.session.handle_subflow_down(id, self.now),
            }
        }
        while let Some(event) = self.session.poll_event() {
            if let Event::StreamOpening { stream, .. } = event {
                self.session.accept(stream, OpenResult::Connected, self.now);
            }
        }
        assert!(self.session.held_bytes() <= LIMITS.most_received() + LIMITS.most_sent());
        assert!(self.session.streams() <= LIMITS.streams + 1024);
    }

    fn transmit(&mut self) {
        for subflow in self.session.subflows() {
            let mut flights = 0;
            while let Some(bytes) = self.session.poll_transmit(subflow.id, 16 << 10, self.now) {
                flights += 1;
                assert!(flights < 1000, "it never stops");
                let reader = self.readers.entry(subflow.id).or_default();
                reader.handle_bytes(bytes);
                while reader.next_frame().expect("what goes out is well formed").is_some() {}
                assert_eq!(reader.held(), 0);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((setting, mut rest)) = bytes.split_first() else { return };
    let mut bench = Bench::new(setting & 1 == 0, setting & 2 != 0);
    // Each step: what to do, and a number.
    while let [what, number, behind @ ..] = rest {
        rest = behind;
        let stream = StreamId(u64::from(number & 7));
        let subflows = bench.session.subflows();
        let subflow = subflows.get(usize::from(*what >> 4) % subflows.len().max(1)).map(|status| status.id);
        match what & 0xF {
            // So many bytes of the input come over a subflow.
            0..=5 => {
                let (piece, behind) = rest.split_at(usize::from(*number).min(rest.len()));
                rest = behind;
                let Some(subflow) = subflow else { continue };
                let result = bench.session.handle_received(subflow, Bytes::copy_from_slice(piece), bench.now);
                match result.map_err(|violation| violation.scope()) {
                    Err(ViolationScope::Session) => return,
                    Err(ViolationScope::Subflow) => bench.session.handle_subflow_down(subflow, bench.now),
                    Ok(()) => {}
                }
            }
            6 => bench.transmit(),
            7 => {
                while let Read::Bytes(bytes) = bench.session.read(stream, 1000, bench.now) {
                    assert!(!bytes.is_empty() && bytes.len() <= 1000);
                }
            }
            8 => {
                let room = bench.session.send_room(stream).min(usize::from(*number) * 300);
                let _ = bench.session.send(stream, vec![1; room].into(), bench.now);
            }
            9 => {
                let _ = bench.session.finish(stream, bench.now);
            }
            10 => bench.session.reset(stream, 7, bench.now),
            11 | 12 => {
                bench.now = bench.now + Duration::from_millis(u64::from(*number) * 20);
                bench.session.handle_timeout(bench.now);
                assert!(
                    bench.session.poll_timeout().is_none_or(|due| due > bench.now),
                    "a timer does not pass"
                );
            }
            13 => {
                if let Some(subflow) = subflow {
                    bench.session.handle_subflow_down(subflow, bench.now);
                }
            }
            14 => match bench.session.role() {
                Role::Relay => bench.up(1 + u32::from(number & 1)),
                Role::Device => bench.open(),
            },
            _ => bench.session.suspect_path(
                PathId(1 + u32::from(number & 1)),
                multiway_core::bond::Suspicion::Loss,
                bench.now,
            ),
        }
        bench.drain();
    }
    bench.transmit();
});
