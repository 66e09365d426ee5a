//! A running emulated link.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use multiway_core::units::{Rate, Timestamp};
use multiway_linksim::{Capacity, Change, Counters, Link, LinkSpec, Loss, generator};

use crate::forward::{self, Shared};
use crate::host::Host;
use crate::packet::PassedPacket;
use crate::tun::Tun;

/// Which way: the device is the first host given to [`crate::Lab::link`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first host to the second.
    Up,
    /// From the second host to the first.
    Down,
}

/// An emulated link between two hosts. It runs until it is dropped; the lab keeps one of the handles.
#[derive(Clone)]
pub struct EmulatedLink {
    running: Arc<Running>,
}

struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported on standard error.
            let _ = thread.join();
        }
    }
}

impl EmulatedLink {
    pub(crate) fn start(
        near: (&Host, &str),
        far: (&Host, &str),
        spec: LinkSpec,
        seed: u64,
        origin: Instant,
    ) -> Result<Self> {
        let near_end = near.0.run(|| Tun::open(near.1))?;
        let far_end = far.0.run(|| Tun::open(far.1))?;
        let name = format!("{}-{}", near.0.name(), near.1);
        let start = Timestamp::from_origin(origin.elapsed());
        let up = Link::starting_at(start, spec.up, generator(seed, &format!("{name} up")));
        let down = Link::starting_at(start, spec.down, generator(seed, &format!("{name} down")));
        let shared = Arc::new(Shared::new([up, down], origin)?);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn({
                let shared = Arc::clone(&shared);
                move || forward::run([near_end, far_end], &shared)
            })
            .context("cannot start a forwarding thread")?;
        Ok(Self { running: Arc::new(Running { shared, thread: Some(thread) }) })
    }

    /// Changes one direction from now on.
    pub fn change(&self, direction: Direction, change: Change) {
        self.running.shared.change(direction as usize, change);
    }

    /// Changes both directions from now on.
    pub fn change_both(&self, change: Change) {
        self.change(Direction::Up, change.clone());
        self.change(Direction::Down, change);
    }

    /// Runs a schedule, with times counted from now. It may be run again.
    pub(crate) fn start_schedule(&self, spec: &LinkSpec) {
        for (direction, config) in [(Direction::Up, &spec.up), (Direction::Down, &spec.down)] {
            for (after, change) in &config.schedule {
                self.running.shared.schedule(direction as usize, *after, change.clone());
            }
        }
    }

    /// Changes both directions after a while, exactly then, whatever the caller is doing.
    pub fn change_both_after(&self, after: Duration, change: Change) {
        self.running.shared.schedule(Direction::Up as usize, after, change.clone());
        self.running.shared.schedule(Direction::Down as usize, after, change);
    }

    /// Sets the rate of one direction.
    pub fn set_rate(&self, direction: Direction, rate: Rate) {
        self.change(direction, Change::Capacity(Capacity::Rate(rate)));
    }

    /// Sets the round-trip time, half of it each way.
    pub fn set_rtt(&self, rtt: Duration) {
        self.change_both(Change::Delay(rtt / 2));
    }

    /// Sets the random loss of both directions.
    pub fn set_loss(&self, loss: Loss) {
        self.change_both(Change::Loss(loss));
    }

    /// While true, the link eats every packet and tells nobody.
    pub fn set_blackhole(&self, is_blackhole: bool) {
        self.change_both(Change::Blackhole(is_blackhole));
    }

    /// While false, the link eats every packet and both interfaces report that their carrier is lost.
    pub fn set_carrier(&self, has_carrier: bool) {
        self.change_both(Change::Carrier(has_carrier));
    }

    /// The packets that the first host sent and received since the last call. The first call begins
    /// the record and gives none.
    pub fn take_packets(&self) -> Vec<PassedPacket> {
        self.running.shared.take_record()
    }

    /// What has become of the packets sent into one direction.
    pub fn counters(&self, direction: Direction) -> Counters {
        self.running.shared.counters()[direction as usize]
    }
}
