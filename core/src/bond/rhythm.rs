//! How steadily data comes that was not asked for just then: a radio's, a camera's, a feed's.
//!
//! Such a server sends each piece as soon as it has it and marks it as the last for now, so that
//! nothing is expected (M4), and the one who listens sends nothing that could stay unacknowledged.
//! What tells that the path failed is that the next piece is late.

use std::time::Duration;

use crate::units::Timestamp;

/// Data that follows other data within so long belongs to the same piece.
const PIECE: Duration = Duration::from_millis(50);

/// Pieces further apart make no rhythm: with half of a gap as much, and the time to ask and to move to
/// another path, a player that holds one second would fall silent anyway.
const LONGEST_GAP: Duration = Duration::from_millis(300);

/// So many pieces make one; a longer gap undoes one, for a network that loses packets makes a long gap of
/// every few and a slower server nothing else. No more are counted, so that a rhythm that ends is forgotten.
const STEADY: u32 = 8;
const MOST_STEADY: u32 = 32;

/// The next piece is late after the longest of the recent gaps and one part of so many of it.
const LATE_PART: u32 = 2;

/// What is shorter is noise of networks and schedulers.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(100);

/// Pieces that did not come for so long will not: whoever sent them has stopped.
const OVER: Duration = Duration::from_secs(5);

/// The rhythm of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rhythm {
    /// When data came last.
    last: Option<Timestamp>,
    /// The longest gap before a piece; older ones fade.
    gap: Duration,
    /// Pieces that kept it.
    kept: u32,
}

impl Rhythm {
    /// New data came.
    pub(super) fn handle_arrival(&mut self, now: Timestamp) {
        let Some(last) = self.last.replace(now) else { return };
        let gap = now - last;
        if gap <= PIECE {
            return;
        }
        if gap <= LONGEST_GAP {
            self.gap = gap.max(self.gap - self.gap / 8);
            self.kept = (self.kept + 1).min(MOST_STEADY);
        } else {
            self.kept = self.kept.saturating_sub(1);
        }
    }

    /// Something was sent: what comes next may be its answer.
    pub(super) fn handle_sent(&mut self) {
        self.kept = 0;
    }

    /// When the next piece is overdue on a path that brought something else at `life`: that the path
    /// lives says that the sender waits. `None` without a rhythm, or when it is over.
    pub(super) fn overdue_at(&self, life: Timestamp) -> Option<Timestamp> {
        let last = self.last.filter(|_| self.kept >= STEADY)?;
        let due = last.max(life) + (self.gap + self.gap / LATE_PART).max(SHORTEST_PATIENCE);
        (due < last + OVER).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_millis(millis))
    }

    fn fed(times: impl IntoIterator<Item = u64>) -> Rhythm {
        let mut rhythm = Rhythm::default();
        times.into_iter().for_each(|at| rhythm.handle_arrival(ms(at)));
        rhythm
    }

    #[test]
    fn the_piece_after_steady_ones_is_overdue_after_a_gap_and_a_half() {
        let radio = fed((0..20).map(|piece| piece * 125));
        assert_eq!(radio.overdue_at(ms(0)), Some(ms(19 * 125) + Duration::from_micros(187_500)));
        // In several packets each.
        let parts = fed((0..20).flat_map(|piece| [piece * 125, piece * 125 + 1, piece * 125 + 3]));
        assert_eq!(parts.overdue_at(ms(0)), Some(ms(19 * 125 + 3 + 122 + 61)));
    }

    #[test]
    fn a_path_that_lives_puts_it_off_until_the_sender_must_have_stopped() {
        let radio = fed((0..20).map(|piece| piece * 125));
        assert_eq!(radio.overdue_at(ms(3000)), Some(ms(3000) + Duration::from_micros(187_500)));
        assert_eq!(radio.overdue_at(ms(19 * 125 + 4900)), None);
    }

    #[test]
    fn few_pieces_answers_and_rare_pieces_make_no_rhythm() {
        assert_eq!(fed((0..8).map(|piece| piece * 125)).overdue_at(ms(0)), None);
        assert_eq!(fed((0..50).map(|piece| piece * 1000)).overdue_at(ms(0)), None);
        let mut answers = Rhythm::default();
        for at in (0..50).map(|piece| piece * 333) {
            answers.handle_sent();
            answers.handle_arrival(ms(at));
        }
        assert_eq!(answers.overdue_at(ms(0)), None);
    }

    #[test]
    fn a_download_that_never_pauses_is_one_piece() {
        assert_eq!(fed((0..1000).map(|packet| packet * 2)).overdue_at(ms(0)), None);
    }

    #[test]
    fn losses_that_hold_up_every_other_piece_do_not_end_it() {
        let lossy = fed((0..20)
            .map(|piece| piece * 125)
            .chain((0..40).map(|pair| 3000 + pair / 2 * 525 + pair % 2 * 125)));
        assert!(lossy.overdue_at(ms(0)).is_some());
    }

    #[test]
    fn one_long_gap_does_not_end_it() {
        let pieces = (0..20).map(|piece| piece * 125);
        let radio = fed(pieces.chain([19 * 125 + 1500]));
        assert_eq!(radio.overdue_at(ms(0)), Some(ms(19 * 125 + 1500) + Duration::from_micros(187_500)));
    }

    proptest! {
        #[test]
        fn it_is_overdue_after_the_last_piece_and_before_it_is_over(
            gaps in prop::collection::vec(0u64..2000, 0..100),
            life in 0u64..200_000,
        ) {
            let mut now = 0;
            let rhythm = fed(gaps.iter().map(|gap| {
                now += gap;
                now
            }));
            if let Some(due) = rhythm.overdue_at(ms(life)) {
                prop_assert!(due >= ms(now) + SHORTEST_PATIENCE && due < ms(now) + OVER);
            }
        }
    }
}
