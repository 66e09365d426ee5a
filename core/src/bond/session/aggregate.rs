//! Which paths transfers get beside the active one ([`Policy::Aggregate`]).
//!
//! A path that costs no money is opened with the session and stays: whatever is transferred then begins
//! with all of them. A metered one is opened when the time that is left justifies it, the rule by which range
//! downloads take a second path, and closes when nothing moves; unless its owner lets it be used like all
//! others ([`Preference::Fast`]): then it is opened with the first stream that may become long, and stays.

use std::time::Duration;

use super::path_use::Entry;
use super::{Session, Stream};
use crate::bond::action::Suspicion;
use crate::bond::config::{Policy, StreamClass};
use crate::mphttp::download::PathOffer;
use crate::paths::{PathId, Preference};
use crate::units::Timestamp;

/// A transfer that went on for so many of the other path's round trips without a pause is expected to
/// go on for as long again, which pays for opening it. What moved less meanwhile is no transfer: it is six
/// segments, which take 130 ms at 0.5 Mbit/s.
const LEAST_BYTES: u64 = 8 << 10;
const LEAST_ROUNDS: u32 = 2;

/// A path that brought nothing for so long, or for so many round trips, does not help: two of the oracle's
/// periods (T_s).
const LEAST_SILENCE: Duration = Duration::from_secs(1);

/// A path goes before one that is preferred to it when it is expected to end a transfer in four fifths of
/// the time: estimates go up and down.
const CLEARLY_SOONER: (u32, u32) = (4, 5);

impl Session {
    /// Whether a path may be used although others would do.
    pub(super) fn is_free(&self, entry: &Entry) -> bool {
        self.is_spent_freely(&entry.offer)
    }

    fn is_spent_freely(&self, offer: &PathOffer) -> bool {
        let likes_all = self.config.policy == Policy::Aggregate && self.config.preference == Preference::Fast;
        !offer.metered || likes_all
    }

    /// The paths in the order in which they are used: with [`Policy::Aggregate`] the one first that is
    /// clearly the fastest by what is known of it, for a stream begins there.
    pub(super) fn in_order(&self, offers: &[PathOffer]) -> Vec<PathOffer> {
        let mut ordered = offers.to_vec();
        let (Policy::Aggregate, Some(first)) = (self.config.policy, offers.first()) else { return ordered };
        let is_free = self.is_spent_freely(first);
        let mut best = (0, first.estimate.reference_time());
        for (index, offer) in offers.iter().enumerate().filter(|(_, it)| self.is_spent_freely(it) == is_free)
        {
            if let (Some(least), Some(time)) = (best.1, offer.estimate.reference_time())
                && time * CLEARLY_SOONER.1 < least * CLEARLY_SOONER.0
            {
                best = (index, Some(time));
            }
        }
        ordered[..=best.0].rotate_right(1);
        ordered
    }

    /// Whether a path that is not the active one is opened for the streams there are.
    pub(super) fn is_worth_opening(&mut self, index: usize, now: Timestamp) -> bool {
        // Until the relay has answered, another subflow would find no session to join.
        let is_known = self.slots.iter().flatten().any(|subflow| subflow.is_answered);
        if self.config.policy != Policy::Aggregate || !is_known {
            return false;
        }
        let entry = &self.plan.paths[index];
        let (is_free, is_metered) = (self.is_free(entry), entry.offer.metered);
        let least = match self.config.preference {
            Preference::Fast => entry.rtt() * LEAST_ROUNDS,
            Preference::Thrifty { tolerance } => (entry.rtt() * LEAST_ROUNDS).max(tolerance / 2),
        };
        let streams = self.busy.iter().filter_map(|id| self.streams.get(id));
        let mut transfers = streams.filter(|stream| stream.class != StreamClass::Interactive);
        if is_free {
            // Where bytes cost nothing, neither does a connection that waits for them.
            return !is_metered || transfers.next().is_some();
        }
        let soonest =
            transfers.filter_map(|stream| Some(stream.busy_since.filter(|_| is_transfer(stream))? + least));
        let Some(at) = soonest.min() else { return false };
        if at > now {
            self.plan.wake(at);
        }
        at <= now
    }

    /// Whether a path that is thought to perform badly brings something all the same: then it helps, be it
    /// slow, and the scheduler knows how much.
    pub(super) fn still_helps(&self, path: PathId, suspicion: Suspicion, now: Timestamp) -> bool {
        let is_of_quality =
            matches!(suspicion, Suspicion::Loss | Suspicion::Retransmissions | Suspicion::Timeout);
        if self.config.policy != Policy::Aggregate || !is_of_quality {
            return false;
        }
        let observation = self.observe_path(path);
        let rounds = observation.smoothed_rtt.unwrap_or_default() * LEAST_ROUNDS;
        observation.last_received.is_some_and(|at| now - at < rounds.max(LEAST_SILENCE))
    }

    /// Whether the policy keeps subflows on a good path that is not the active one.
    pub(super) fn wants_path(&self, path: PathId) -> bool {
        let Some(index) = self.plan.index(path) else { return false };
        self.config.policy == Policy::Aggregate
            && (!self.busy.is_empty() || self.is_free(&self.plan.paths[index]))
    }
}

fn is_transfer(stream: &Stream) -> bool {
    let moved = stream.sender.sent_end() + stream.receiver.highest();
    moved + stream.sender.unsent() >= LEAST_BYTES
}
