//! Is a path that failed clearly good again? A sequential test of what it loses (Wald 1945), with a floor, so
//! that it follows a path that gets better (Page's CUSUM, 1954).
//!
//! Every PING that is answered in time says that two packets arrived; every loss that one of the kernels saw
//! says that one did not. That a path loses [`GOOD_PPM`] rather than [`BAD_PPM`] gets likelier by the factor
//! 1.33 with each answer, and less likely by the factor 7.5 with each loss: as much as [`LOSS_COST`] answers.
//! Lateness is no loss: a busy machine is late on every path.

use std::time::Duration;

use crate::bond::subflow::SubflowSample;
use crate::units::Timestamp;

/// Packets lost each way on a path that is gone back to, and on one that is not, in parts per million. At 15%
/// answers are late again and again and the oracle finds its 25% in a few periods.
#[cfg(test)]
const GOOD_PPM: u32 = 20_000;
#[cfg(test)]
const BAD_PPM: u32 = 150_000;

/// What a loss takes back, in answers: ln(0.15/0.02) / (2 ln(0.98/0.85)) = 7.1.
const LOSS_COST: u32 = 7;

/// Answers that make a path good again while another one works: it is then e^(2 ln(0.98/0.85) * 20) = 300 times as
/// likely to lose 2% as to lose 15%, and without a loss fewer than 7.2% at a confidence of 95%.
const ENOUGH: u32 = 20;

/// Each relapse makes twice as many necessary, up to so many times as many.
const MOST_TIMES: u32 = 8;

/// Answers that are enough where nothing is to be lost: no other path works, or the other ones stay in use.
const ENOUGH_FOR_NOTHING: u32 = 4;

/// The kernel's least retransmission timeout (Linux, `TCP_RTO_MIN`): an answer that comes later may have been
/// sent again.
const LEAST_TIMEOUT: Duration = Duration::from_millis(200);

/// After losses the kernel's smoothed round trip is long for a while. It is not believed beyond so many of the
/// least one.
const MOST_RTTS: u32 = 2;

/// Answers that come closer together were held up together, and say as much as one: half of the time between
/// questions.
const LEAST_GAP: Duration = Duration::from_millis(50);

/// What is known of a path since it failed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Proof {
    /// Answers, less what losses took back.
    score: u32,
    /// Answers since the last sample: whether anything was lost meanwhile is not known yet.
    unconfirmed: u32,
    /// When the last of them came.
    answered_at: Option<Timestamp>,
    /// When a gap in what arrives was seen last.
    gap_at: Option<Timestamp>,
}

impl Proof {
    /// How many answers it takes after so many relapses.
    pub(super) fn needed(relapses: u32) -> u32 {
        ENOUGH * 2_u32.saturating_pow(relapses).min(MOST_TIMES)
    }

    /// How many it takes where there is nothing to be careful for.
    pub(super) const fn needed_for_nothing() -> u32 {
        ENOUGH_FOR_NOTHING
    }

    /// A PING that went out at `asked` was answered.
    pub(super) fn handle_answer(&mut self, asked: Timestamp, sample: &SubflowSample, now: Timestamp) {
        let most = sample.min_rtt.map_or(Duration::MAX, |least| least * MOST_RTTS);
        let is_late =
            !sample.smoothed_rtt.is_zero() && now - asked >= sample.smoothed_rtt.min(most) + LEAST_TIMEOUT;
        if !is_late && self.answered_at.is_none_or(|at| now - at >= LEAST_GAP) {
            self.answered_at = Some(now);
            self.unconfirmed += 1;
        }
    }

    /// The kernel's counters of the subflow that is asked, before and now.
    pub(super) fn handle_sample(&mut self, before: &SubflowSample, sample: &SubflowSample, now: Timestamp) {
        let grown = |of: fn(&SubflowSample) -> u64| of(sample).saturating_sub(of(before));
        // What was sent again in vain was not lost (RFC 2883).
        let again = grown(|it| it.segments_retransmitted).saturating_sub(grown(|it| it.duplicates_reported));
        let mut losses = u32::try_from(again).unwrap_or(u32::MAX);
        // Everything that arrives behind a gap until it is filled shows the same loss.
        let is_new = self.gap_at.is_none_or(|at| now - at > sample.smoothed_rtt);
        if grown(|it| it.segments_out_of_order) > 0 && is_new {
            self.gap_at = Some(now);
            losses = losses.saturating_add(1);
        }
        self.score = self.score.saturating_sub(losses.saturating_mul(LOSS_COST));
        self.score += std::mem::take(&mut self.unconfirmed);
    }

    /// Whether it is as good as so many answers without a loss.
    pub(super) fn is_worth(&self, answers: u32) -> bool {
        self.score >= answers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_origin(ms(millis))
    }

    fn seen() -> SubflowSample {
        SubflowSample { smoothed_rtt: ms(20), min_rtt: Some(ms(19)), ..SubflowSample::default() }
    }

    /// So many answers in time.
    fn answer(proof: &mut Proof, answers: u32) {
        for _ in 0..answers {
            let now = proof.answered_at.unwrap_or(at(100)) + ms(100);
            proof.handle_answer(Timestamp::from_origin(now.since_origin() - ms(25)), &seen(), now);
        }
    }

    /// So many answers, and then a sample with more losses of either kind.
    fn fed(proof: &mut Proof, answers: u32, before: SubflowSample, again: u64, gaps: u64) -> SubflowSample {
        answer(proof, answers);
        let after = SubflowSample {
            segments_retransmitted: before.segments_retransmitted + again,
            segments_out_of_order: before.segments_out_of_order + gaps,
            ..before
        };
        proof.handle_sample(&before, &after, at(1000));
        after
    }

    #[test]
    fn what_a_loss_takes_back_follows_from_the_rates() {
        let (good, bad) = (f64::from(GOOD_PPM) / 1e6, f64::from(BAD_PPM) / 1e6);
        let answer = 2.0 * ((1.0 - good) / (1.0 - bad)).ln();
        let loss = (bad / good).ln();
        assert!((loss / answer - f64::from(LOSS_COST)).abs() < 0.5);
        assert!((answer * f64::from(ENOUGH)).exp() > 290.0);
        // Clopper and Pearson's bound without a loss.
        assert!((1.0 - 0.05_f64.powf(1.0 / f64::from(2 * ENOUGH)) - 0.072).abs() < 0.001);
    }

    #[test]
    fn answers_count_once_a_sample_has_shown_that_nothing_was_lost() {
        let mut proof = Proof::default();
        answer(&mut proof, ENOUGH);
        assert!(!proof.is_worth(1));
        proof.handle_sample(&seen(), &seen(), at(0));
        assert!(proof.is_worth(Proof::needed(0)) && !proof.is_worth(Proof::needed(1)));
        assert_eq!((Proof::needed(2), Proof::needed(u32::MAX)), (80, 160));
    }

    #[test]
    fn losses_either_way_take_back_and_gaps_count_once_a_round_trip() {
        let mut proof = Proof::default();
        let mut sample = fed(&mut proof, 19, seen(), 0, 0);
        sample = fed(&mut proof, 1, sample, 1, 0);
        assert_eq!(proof.score, 13);
        sample = fed(&mut proof, 1, sample, 0, 2);
        assert_eq!(proof.score, 7);
        fed(&mut proof, 1, sample, 0, 1);
        assert_eq!(proof.score, 8, "the same gap");
        fed(&mut proof, 2, seen(), 9, 0);
        assert_eq!(proof.score, 2, "never below nothing");
    }

    #[test]
    fn what_was_sent_again_in_vain_is_no_loss() {
        let mut proof = Proof::default();
        fed(&mut proof, 10, seen(), 0, 0);
        let needless = SubflowSample { segments_retransmitted: 2, duplicates_reported: 2, ..seen() };
        proof.handle_sample(&seen(), &needless, at(2000));
        assert_eq!(proof.score, 10);
    }

    #[test]
    fn an_answer_that_is_late_says_nothing_and_takes_nothing_back() {
        let mut proof = Proof::default();
        fed(&mut proof, 10, seen(), 0, 0);
        proof.handle_answer(at(5000), &seen(), at(5219));
        proof.handle_answer(at(5100), &seen(), at(5320));
        // The kernel thinks that seconds are usual by now.
        proof.handle_answer(at(5200), &SubflowSample { smoothed_rtt: ms(3000), ..seen() }, at(5500));
        proof.handle_sample(&seen(), &seen(), at(6000));
        assert_eq!(proof.score, 11);
    }

    #[test]
    fn answers_that_come_together_are_one() {
        let mut proof = Proof::default();
        for asked in 0..16 {
            proof.handle_answer(at(1000 + asked), &seen(), at(1100));
        }
        proof.handle_sample(&seen(), &seen(), at(1200));
        assert_eq!(proof.score, 1);
    }

    proptest! {
        #[test]
        fn counters_of_any_kind_do_no_harm(samples in prop::collection::vec(any::<(u64, u64, u64)>(), 0..40)) {
            let mut proof = Proof::default();
            let mut before = seen();
            for (answers, (again, gaps, duplicates)) in (0..).zip(samples) {
                let after = SubflowSample {
                    segments_retransmitted: again,
                    segments_out_of_order: gaps,
                    duplicates_reported: duplicates,
                    ..seen()
                };
                proof.handle_answer(at(answers * 100), &before, at(answers * 100));
                proof.handle_sample(&before, &after, at(answers * 100));
                prop_assert!(u64::from(proof.score) <= answers + 1);
                before = after;
            }
        }
    }
}
