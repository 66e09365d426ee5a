//! How fast a path is, by what a session got over it while the far end had more to send.

use std::time::Duration;

use crate::paths::Observation;
use crate::units::Timestamp;

/// What goes on for longer is told in parts, so that little is lost with the program.
const LONGEST: Duration = Duration::from_secs(10);

/// Fewer bytes say nothing, unless they are all that came in [`LONGEST`]: on most paths they pass in slow start, or
/// another path brought the rest.
const LEAST_BYTES: u64 = 256 << 10;

/// A path that brought nothing for so long, or for two round trips, was given nothing.
const PAUSE: Duration = Duration::from_millis(200);

/// The load of one path, from readings at short distances.
#[derive(Debug, Clone, Default)]
pub struct LoadMeter {
    /// Bytes received by the last reading.
    received: u64,
    load: Option<Load>,
}

/// A time without a pause.
#[derive(Debug, Clone, Copy)]
struct Load {
    begun: Timestamp,
    /// When bytes came last.
    last: Timestamp,
    bytes: u64,
}

impl LoadMeter {
    /// Takes in how many bytes came over the path so far, and whether the far end has more to send that it may
    /// send. Returns what a load showed that is over, unless it was too short to tell a rate.
    pub fn handle_reading(
        &mut self,
        received: u64,
        has_more: bool,
        least_rtt: Option<Duration>,
        now: Timestamp,
    ) -> Option<Observation> {
        let before = std::mem::replace(&mut self.received, received);
        // Of a connection that is gone, nobody knows what it brought last.
        let new = received.checked_sub(before);
        if let (Some(load), Some(new @ 1..)) = (&mut self.load, new) {
            load.last = now;
            load.bytes += new;
        }
        let pause = PAUSE.max(least_rtt.unwrap_or_default() * 2);
        let is_paused = self.load.is_some_and(|load| now - load.last > pause);
        let goes_on = has_more && new.is_some() && !is_paused;
        let is_told = self.load.is_none_or(|load| !goes_on || now - load.begun >= LONGEST);
        if !is_told {
            return None;
        }
        // What came with the first word of more began to come before.
        let next = goes_on.then_some(Load { begun: now, last: now, bytes: 0 });
        let over = std::mem::replace(&mut self.load, next)?;
        let time = over.last - over.begun;
        let shown = Observation::of_transfer(over.bytes, time, least_rtt);
        let is_enough = over.bytes >= LEAST_BYTES || time >= LONGEST;
        (is_enough && shown.throughput.is_some()).then_some(shown)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Rate;

    const LOOK: Duration = Duration::from_millis(20);
    const RTT: Option<Duration> = Some(Duration::from_millis(30));

    /// 10 Mbit/s.
    const BYTES: u64 = 25_000;

    fn at(look: u32) -> Timestamp {
        Timestamp::from_origin(LOOK * look)
    }

    #[test]
    fn a_transfer_shows_the_rate_and_the_round_trip() {
        let mut meter = LoadMeter::default();
        for look in 0..=50 {
            assert_eq!(meter.handle_reading(BYTES * u64::from(look), true, RTT, at(look)), None);
        }
        let shown = meter.handle_reading(BYTES * 51, false, RTT, at(51)).expect("a second and more");
        assert_eq!(shown.throughput, Some(Rate::from_bytes_in(BYTES * 51, LOOK * 51)));
        assert_eq!((shown.rtt, shown.bytes), (RTT, BYTES * 51));
        assert_eq!(meter.handle_reading(BYTES * 51, false, RTT, at(52)), None);
    }

    #[test]
    fn what_is_sent_as_it_is_made_shows_nothing() {
        let mut meter = LoadMeter::default();
        for look in 0..1000 {
            // A radio, each of whose pieces is the last for now, and an answer of some packets.
            let has_more = look % 50 == 0;
            assert_eq!(meter.handle_reading(u64::from(look) * 2000, has_more, RTT, at(look)), None);
        }
    }

    #[test]
    fn a_pause_at_the_end_is_not_counted_and_a_lost_connection_ends_it() {
        let mut meter = LoadMeter::default();
        for look in 0..=50 {
            meter.handle_reading(BYTES * u64::from(look), true, RTT, at(look));
        }
        let shown = meter.clone().handle_reading(BYTES * 50, true, RTT, at(61)).expect("a second");
        assert_eq!(shown.throughput, Some(Rate::from_bytes_in(BYTES * 50, LOOK * 50)));
        let shown = meter.handle_reading(BYTES, true, RTT, at(51)).expect("a second");
        assert_eq!(shown.throughput, Some(Rate::from_bytes_in(BYTES * 50, LOOK * 50)));
    }

    #[test]
    fn a_slow_path_is_known_after_ten_seconds_and_a_little_beside_another_path_says_nothing() {
        let little = |looks: u32| {
            let mut meter = LoadMeter::default();
            let mut shown = Vec::new();
            for look in 0..looks {
                shown.extend(meter.handle_reading(250 * u64::from(look), true, RTT, at(look)));
            }
            shown.extend(meter.handle_reading(250 * u64::from(looks), false, RTT, at(looks)));
            shown.into_iter().map(|shown| shown.throughput).collect::<Vec<_>>()
        };
        assert_eq!(little(400), []);
        assert_eq!(little(501), [Some(Rate::from_bits_per_second(100_000))]);
    }

    #[test]
    fn what_lasts_long_is_told_in_parts() {
        let mut meter = LoadMeter::default();
        let told = (0..2000).filter_map(|look| {
            meter.handle_reading(BYTES * u64::from(look), true, RTT, at(look)).map(|shown| shown.bytes)
        });
        assert_eq!(told.collect::<Vec<_>>(), [BYTES * 500; 3]);
    }

    proptest! {
        #[test]
        fn it_never_tells_more_than_came(readings in prop::collection::vec((0u64..100_000, any::<bool>(), 0u32..100), 0..200)) {
            let mut meter = LoadMeter::default();
            let (mut received, mut look, mut told) = (0, 0, 0);
            for (bytes, has_more, gap) in readings {
                received += bytes;
                look += gap;
                told += meter.handle_reading(received, has_more, RTT, at(look)).map_or(0, |shown| shown.bytes);
                prop_assert!(told <= received);
            }
        }
    }
}
