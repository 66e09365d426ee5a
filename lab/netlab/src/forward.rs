//! The thread that makes an emulated link: it moves packets between two TUN devices and asks the link
//! model when.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use multiway_core::units::Timestamp;
use multiway_linksim::{Change, Counters, Link};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::link::Direction;
use crate::packet::PassedPacket;
use crate::tun::Tun;

/// So many packets are read from one end before the other gets its turn.
const READ_BATCH: usize = 64;

/// Room for the largest packet a TUN device hands over.
const READ_BUFFER_BYTES: usize = 65_536;

/// Sleeps are at least this long, so that at hundreds of Mbit/s one wake-up serves several packets.
/// Packets come at most so much late; the model's own times do not move.
const SHORTEST_SLEEP: Duration = Duration::from_micros(40);

/// Buffers kept for reuse.
const SPARE_BUFFERS: usize = 4096;

/// Real-time priority of the forwarding threads: the lowest one, above every ordinary thread, so that
/// the programs under test cannot delay the network they are tested on.
const REAL_TIME_PRIORITY: libc::c_int = 1;

type Packet = Vec<u8>;

/// What the forwarding thread and its owner share.
pub(crate) struct Shared {
    /// From the near end to the far end, and back.
    links: Mutex<[Link<Packet>; 2]>,
    /// Packets as the near end sends and receives them, while somebody wants to know.
    record: Mutex<Option<Vec<PassedPacket>>>,
    wake: EventFd,
    is_stopping: AtomicBool,
    origin: Instant,
}

impl Shared {
    pub(crate) fn new(links: [Link<Packet>; 2], origin: Instant) -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .context("cannot make an eventfd")?;
        Ok(Self {
            links: Mutex::new(links),
            record: Mutex::default(),
            wake,
            is_stopping: AtomicBool::new(false),
            origin,
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_origin(self.origin.elapsed())
    }

    /// Changes one direction now.
    pub(crate) fn change(&self, direction: usize, change: Change) {
        let mut links = self.lock();
        links[direction].handle_change(self.now(), change);
        drop(links);
        self.wake();
    }

    /// Changes one direction later.
    pub(crate) fn schedule(&self, direction: usize, after: Duration, change: Change) {
        let mut links = self.lock();
        links[direction].schedule(self.now() + after, change);
        drop(links);
        self.wake();
    }

    pub(crate) fn counters(&self) -> [Counters; 2] {
        let mut links = self.lock();
        let now = self.now();
        links.iter_mut().for_each(|link| link.handle_timeout(now));
        [links[0].counters(), links[1].counters()]
    }

    /// What was recorded since the last call; from now on a record is kept.
    pub(crate) fn take_record(&self) -> Vec<PassedPacket> {
        self.record().replace(Vec::new()).unwrap_or_default()
    }

    fn record(&self) -> MutexGuard<'_, Option<Vec<PassedPacket>>> {
        self.record.lock().expect("no thread panics while it holds the record")
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // It can only fail when the counter is full, and then the thread wakes anyway.
        let _ = self.wake.write(1);
    }

    fn lock(&self) -> MutexGuard<'_, [Link<Packet>; 2]> {
        self.links.lock().expect("no thread panics while it holds the links")
    }
}

/// Forwards until told to stop.
pub(crate) fn run(ends: [Tun; 2], shared: &Arc<Shared>) {
    prefer_this_thread();
    let mut forwarder = Forwarder {
        ends,
        buffer: vec![0; READ_BUFFER_BYTES],
        spare: Vec::new(),
        has_carrier: true,
        is_gone: [false; 2],
    };
    while !shared.is_stopping.load(Ordering::Relaxed) {
        let timeout = forwarder.turn(shared);
        forwarder.sleep(shared, timeout);
    }
}

struct Forwarder {
    ends: [Tun; 2],
    buffer: Vec<u8>,
    spare: Vec<Packet>,
    has_carrier: bool,
    /// Ends whose interface somebody deleted.
    is_gone: [bool; 2],
}

impl Forwarder {
    /// Takes in what was sent, puts out what has arrived, and tells when to come back.
    fn turn(&mut self, shared: &Shared) -> Option<Duration> {
        let mut links = shared.lock();
        let mut has_more = false;
        let mut record = shared.record();
        let mut note = |at, direction, packet: &[u8]| {
            if let Some(record) = record.as_mut() {
                record.push(PassedPacket::new(at, direction, packet));
            }
        };
        for (direction, (end, link)) in
            [Direction::Up, Direction::Down].into_iter().zip(self.ends.iter().zip(links.iter_mut()))
        {
            let mut reads = 0;
            while reads < READ_BATCH
                && let Some(length) = end.read(&mut self.buffer)
            {
                reads += 1;
                let mut packet = self.spare.pop().unwrap_or_default();
                packet.clear();
                packet.extend_from_slice(&self.buffer[..length]);
                let now = shared.now();
                if direction == Direction::Up {
                    note(now, direction, &packet);
                }
                link.handle_packet(now, length as u64, packet);
            }
            has_more |= reads == READ_BATCH;
        }
        for (direction, (link, far_end)) in
            [Direction::Up, Direction::Down].into_iter().zip(links.iter_mut().zip(self.ends.iter().rev()))
        {
            while let Some(packet) = link.poll_deliver(shared.now()) {
                if direction == Direction::Down {
                    note(shared.now(), direction, &packet);
                }
                far_end.write(&packet);
                if self.spare.len() < SPARE_BUFFERS {
                    self.spare.push(packet);
                }
            }
        }
        drop(record);
        let has_carrier = links.iter().all(Link::has_carrier);
        let next = links.iter().filter_map(Link::poll_timeout).min();
        drop(links);
        self.show_carrier(has_carrier);
        if has_more { Some(Duration::ZERO) } else { next.map(|at| at.saturating_since(shared.now())) }
    }

    /// Tells both kernels when the carrier came or went.
    fn show_carrier(&mut self, has_carrier: bool) {
        if has_carrier != self.has_carrier {
            self.has_carrier = has_carrier;
            for end in &self.ends {
                // A device that is being removed no longer has a carrier to set.
                let _ = end.set_carrier(has_carrier);
            }
        }
    }

    fn sleep(&mut self, shared: &Shared, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| {
            let sleeps = if timeout.is_zero() { timeout } else { timeout.max(SHORTEST_SLEEP) };
            TimeSpec::from_duration(sleeps)
        });
        // A deleted interface is always ready to report its error, so it is waited for no more.
        let wake = shared.wake.as_fd();
        let end = |index: usize| if self.is_gone[index] { wake } else { self.ends[index].as_fd() };
        let mut sources = [end(0), end(1), wake].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut sources, timeout, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => unreachable!("ppoll on three open descriptors failed: {error}"),
        }
        let [near, far, woken] = sources.map(|source| source.revents().unwrap_or(PollFlags::empty()));
        for (is_gone, events) in self.is_gone.iter_mut().zip([near, far]) {
            *is_gone |= events.contains(PollFlags::POLLERR);
        }
        if !woken.is_empty() {
            // Whoever woke us has already changed the links; the count does not matter.
            let _ = shared.wake.read();
        }
    }
}

/// Asks for exact wake-ups and for the processor as soon as there is work. Without the right to
/// real-time scheduling the lab still works, only less exactly on a busy machine.
fn prefer_this_thread() {
    #[expect(unsafe_code, reason = "prctl and sched_setscheduler for this thread have no safe wrappers")]
    // SAFETY: both calls take plain values, and the kernel only reads the parameter structure.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0);
        let parameter = libc::sched_param { sched_priority: REAL_TIME_PRIORITY };
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameter);
    }
}
