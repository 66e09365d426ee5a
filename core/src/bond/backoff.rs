//! How long to wait before a relay that does not answer is tried again.

use std::time::Duration;

/// The first wait, which doubles with every failure. A relay that restarts is back within about so
/// long, and four attempts in a second are no burden to it.
const FIRST: Duration = Duration::from_millis(250);

/// The longest wait. Whoever waits for a relay to come back looks again after half a minute, and a
/// thousand devices then come thirty times in a second.
const LONGEST: Duration = Duration::from_secs(30);

/// Chance makes a wait longer by up to half of it, so that devices that lost their relay together do
/// not come back together.
const SPREAD: f64 = 0.5;

/// The wait after so many failures in a row, the first of which is number 0. `chance`, from 0 to 1,
/// sets it apart from that of others.
pub fn wait(failures: u32, chance: f64) -> Duration {
    let spread = 1.0 + SPREAD * chance.clamp(0.0, 1.0);
    let doubled = FIRST.saturating_mul(2_u32.saturating_pow(failures));
    doubled.min(LONGEST.div_f64(1.0 + SPREAD)).mul_f64(spread)
}

/// Numbers from 0 to 1 out of a seed (splitmix64: Steele, Lea, Flood 2014); always 0 out of seed 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chance {
    state: u64,
}

impl Chance {
    pub(super) fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn draw(&mut self) -> f64 {
        if self.state == 0 {
            return 0.0;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bits = (mixed ^ (mixed >> 31)) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_chance_sets_them_apart() {
        let plain: Vec<u128> = (0..9).map(|failures| wait(failures, 0.0).as_millis()).collect();
        assert_eq!(plain, [250, 500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
        assert_eq!(wait(0, 1.0), Duration::from_millis(375));
        assert_eq!(wait(u32::MAX, 1.0), LONGEST);
        assert_eq!(wait(3, f64::NAN.max(0.5)), Duration::from_millis(2500));
    }

    #[test]
    fn a_seed_gives_numbers_all_over_the_range_and_none_gives_none() {
        let mut chance = Chance::seeded(7);
        let drawn: Vec<f64> = (0..1000).map(|_| chance.draw()).collect();
        assert!(drawn.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert_eq!(Chance::default().draw(), 0.0);
    }
}
