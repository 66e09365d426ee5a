//! What a radio's packets cost in energy: the power models of Huang et al., "A Close Examination of
//! Performance and Power Characteristics of 4G LTE Networks" (MobiSys 2012), tables 3 and 4.
//!
//! A radio that is woken up is promoted, stays connected while packets come, and then keeps a tail of
//! high power in case more come. The tail is why one small packet costs nearly as much as a hundred.

use std::time::Duration;

use multiway_core::units::Timestamp;

/// Time a radio spends in a state, and the power it draws there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RadioState {
    /// How long it lasts.
    pub(crate) duration: Duration,
    /// Its mean power in milliwatts.
    pub(crate) milliwatts: f64,
}

/// A kind of radio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RadioModel {
    /// From idle to connected.
    pub(crate) promotion: RadioState,
    /// What follows the last packet, until the radio is idle again.
    pub(crate) tail: RadioState,
    /// Power per Mbit/s sent, in milliwatts.
    pub(crate) milliwatts_per_mbit_up: f64,
    /// Power per Mbit/s received, in milliwatts.
    pub(crate) milliwatts_per_mbit_down: f64,
    /// Power while packets come and go, whatever their rate, in milliwatts.
    pub(crate) milliwatts_connected: f64,
}

/// A gap between packets up to this long is part of a transfer; in a longer one the tail begins.
/// Section 5.2: LTE receives continuously for 100 ms after a packet before it saves power.
const TRANSFER_GAP: Duration = Duration::from_millis(100);

/// Bits in a megabit, per byte.
const MBIT_PER_BYTE: f64 = 8e-6;

impl RadioModel {
    /// 4G.
    pub(crate) const LTE: Self = Self {
        promotion: RadioState { duration: Duration::from_micros(260_100), milliwatts: 1210.7 },
        tail: RadioState { duration: Duration::from_millis(11_576), milliwatts: 1060.0 },
        milliwatts_per_mbit_up: 438.39,
        milliwatts_per_mbit_down: 51.97,
        milliwatts_connected: 1288.04,
    };

    /// The energy that these packets cost beyond an idle radio's, the last tail to its end.
    /// Preconditions: packets are in the order of their times.
    pub(crate) fn energy(&self, packets: &[RadioPacket]) -> RadioEnergy {
        let mut energy = RadioEnergy::default();
        let mut last: Option<Timestamp> = None;
        for packet in packets {
            let gap = last.map(|last| packet.at - last);
            match gap {
                Some(gap) if gap <= TRANSFER_GAP => {
                    energy.transfer_mj += self.milliwatts_connected * gap.as_secs_f64();
                }
                Some(gap) => energy.tail_mj += self.tail_mj(gap),
                None => {}
            }
            if gap.is_none_or(|gap| gap > self.tail.duration) {
                energy.promotions += 1;
                energy.promotion_mj += self.promotion.millijoules(self.promotion.duration);
            }
            energy.transfer_mj += self.milliwatts_per_mbit_up * packet.bytes_up as f64 * MBIT_PER_BYTE
                + self.milliwatts_per_mbit_down * packet.bytes_down as f64 * MBIT_PER_BYTE;
            last = Some(packet.at);
        }
        if last.is_some() {
            energy.tail_mj += self.tail_mj(Duration::MAX);
        }
        energy
    }

    /// The tail's energy when the next packet comes after `gap`.
    fn tail_mj(&self, gap: Duration) -> f64 {
        self.tail.millijoules(gap.min(self.tail.duration))
    }
}

impl RadioState {
    fn millijoules(self, duration: Duration) -> f64 {
        self.milliwatts * duration.as_secs_f64()
    }
}

/// Bytes that a radio sent or received at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RadioPacket {
    /// When.
    pub(crate) at: Timestamp,
    /// Bytes sent.
    pub(crate) bytes_up: u64,
    /// Bytes received.
    pub(crate) bytes_down: u64,
}

/// Energy by the state in which it was used, in millijoules.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct RadioEnergy {
    /// How often the radio was woken up.
    pub(crate) promotions: u32,
    /// Waking up.
    pub(crate) promotion_mj: f64,
    /// While packets came and went.
    pub(crate) transfer_mj: f64,
    /// Waiting for more.
    pub(crate) tail_mj: f64,
}

impl RadioEnergy {
    /// All of it.
    pub(crate) fn total_mj(&self) -> f64 {
        self.promotion_mj + self.transfer_mj + self.tail_mj
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(at_ms: u64, bytes_up: u64, bytes_down: u64) -> RadioPacket {
        RadioPacket { at: Timestamp::from_origin(Duration::from_millis(at_ms)), bytes_up, bytes_down }
    }

    fn assert_close(energy: f64, expected: f64) {
        assert!((energy - expected).abs() < 0.05, "{energy} mJ instead of {expected} mJ");
    }

    #[test]
    fn silence_costs_nothing() {
        assert_eq!(RadioModel::LTE.energy(&[]), RadioEnergy::default());
    }

    #[test]
    fn one_packet_costs_a_promotion_and_a_tail() {
        let energy = RadioModel::LTE.energy(&[packet(0, 60, 0)]);
        // 0.2601 s * 1210.7 mW; 11.576 s * 1060 mW; 480 bits at 438.39 mJ per Mbit.
        assert_close(energy.promotion_mj, 314.903);
        assert_close(energy.tail_mj, 12_270.56);
        assert_close(energy.transfer_mj, 0.210);
        assert_close(energy.total_mj(), 12_585.67);
    }

    #[test]
    fn a_transfer_costs_its_bytes_and_its_time() {
        // 1 MB down in 1 s in packets every 50 ms, 100 kB up: 8 Mbit * 51.97 + 0.8 Mbit * 438.39 + 1288.04.
        let packets: Vec<_> = (0..=20).map(|n| packet(n * 50, 100_000 / 21, 1_000_000 / 21)).collect();
        let energy = RadioModel::LTE.energy(&packets);
        assert!((energy.transfer_mj - (415.76 + 350.712 + 1288.04)).abs() < 0.1, "{energy:?}");
        assert_eq!(energy.promotions, 1);
    }

    #[test]
    fn packets_within_the_tail_cut_it_short() {
        let energy = RadioModel::LTE.energy(&[packet(0, 0, 0), packet(5000, 0, 0)]);
        assert_eq!(energy.promotions, 1);
        assert_close(energy.tail_mj, 5.0 * 1060.0 + 12_270.56);
        assert_close(energy.transfer_mj, 0.0);
    }

    #[test]
    fn packets_after_the_tail_wake_the_radio_again() {
        let energy = RadioModel::LTE.energy(&[packet(0, 0, 0), packet(20_000, 0, 0)]);
        assert_eq!(energy.promotions, 2);
        assert_close(energy.total_mj(), 2.0 * (314.903 + 12_270.56));
    }

    proptest! {
        #[test]
        fn a_further_packet_costs_more_and_at_most_what_it_costs_alone(
            gaps in prop::collection::vec((0u64..30_000, 0u64..2000, 0u64..2000), 2..40),
        ) {
            let mut now = 0;
            let packets: Vec<_> = gaps.iter().map(|(gap, up, down)| {
                now += gap;
                packet(now, *up, *down)
            }).collect();
            let (last, before) = packets.split_last().expect("at least two");
            let total = |packets: &[RadioPacket]| RadioModel::LTE.energy(packets).total_mj();
            let more = total(&packets) - total(before);
            prop_assert!(more >= -1e-6 && more <= total(&[*last]) + 1e-6, "{more}");
        }
    }
}
