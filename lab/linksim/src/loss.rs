//! Random loss.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// A probability, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

/// A number that is no probability.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{0} is no probability: give a number from 0 to 1, or a percentage such as \"1%\"")]
pub struct ProbabilityError(pub f64);

impl Probability {
    /// Never.
    pub const ZERO: Self = Self(0.0);
    /// Always.
    pub const ONE: Self = Self(1.0);

    /// Checks that `value` lies from 0 to 1.
    pub fn new(value: f64) -> Result<Self, ProbabilityError> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(ProbabilityError(value)) }
    }

    /// The number from 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }

    fn draw(self, generator: &mut ChaCha8Rng) -> bool {
        // Certain outcomes draw nothing, so that switching loss off leaves the generator alone.
        self.0 > 0.0 && (self.0 >= 1.0 || generator.random_bool(self.0))
    }
}

/// Which packets are lost on the way, after they used the link's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with the same probability, independently.
    Bernoulli(Probability),
    /// Losses in bursts, after Gilbert (1960) and Elliott (1963): a two-state Markov chain that
    /// takes one step per packet.
    GilbertElliott {
        /// Chance per packet to turn from the good state to the bad one.
        good_to_bad: Probability,
        /// Chance per packet to turn from the bad state to the good one.
        bad_to_good: Probability,
        /// Chance of loss in the good state.
        loss_in_good: Probability,
        /// Chance of loss in the bad state.
        loss_in_bad: Probability,
    },
}

impl Loss {
    /// Independent loss with probability `probability`.
    pub fn bernoulli(probability: f64) -> Result<Self, ProbabilityError> {
        Ok(Self::Bernoulli(Probability::new(probability)?))
    }

    /// The share of packets lost in the long run.
    pub fn mean(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Bernoulli(probability) => probability.get(),
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad } => {
                let turns = good_to_bad.get() + bad_to_good.get();
                let bad = if turns == 0.0 { 0.0 } else { good_to_bad.get() / turns };
                bad * loss_in_bad.get() + (1.0 - bad) * loss_in_good.get()
            }
        }
    }
}

/// A [`Loss`] and where its Markov chain stands.
#[derive(Debug, Clone)]
pub(crate) struct LossProcess {
    loss: Loss,
    is_bad: bool,
}

impl LossProcess {
    pub(crate) fn new(loss: Loss) -> Self {
        Self { loss, is_bad: false }
    }

    /// Decides the fate of the next packet.
    pub(crate) fn loses_next(&mut self, generator: &mut ChaCha8Rng) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Bernoulli(probability) => probability.draw(generator),
            Loss::GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad } => {
                let turn = if self.is_bad { bad_to_good } else { good_to_bad };
                self.is_bad ^= turn.draw(generator);
                if self.is_bad { loss_in_bad } else { loss_in_good }.draw(generator)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator;

    fn share_lost(loss: Loss) -> f64 {
        let mut process = LossProcess::new(loss);
        let mut generator = generator(7, "loss");
        let packets = 200_000;
        let lost = (0..packets).filter(|_| process.loses_next(&mut generator)).count();
        lost as f64 / f64::from(packets)
    }

    #[test]
    fn independent_loss_meets_its_probability() {
        let share = share_lost(Loss::bernoulli(0.01).expect("0.01 is a probability"));
        assert!((share - 0.01).abs() < 0.001, "{share}");
    }

    #[test]
    fn bursty_loss_meets_its_stationary_mean() {
        let probability = |p| Probability::new(p).expect("a probability");
        let loss = Loss::GilbertElliott {
            good_to_bad: probability(0.01),
            bad_to_good: probability(0.2),
            loss_in_good: Probability::ZERO,
            loss_in_bad: probability(0.5),
        };
        let share = share_lost(loss);
        assert!((share - loss.mean()).abs() < 0.003, "{share} against {}", loss.mean());
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for value in [-0.1, 1.1, f64::NAN] {
            assert!(Probability::new(value).is_err(), "{value}");
        }
    }
}
