//! Quantities as people write them: `20 Mbit/s`, `30 ms`, `64 KiB`, `2 BDP`, `1%`.

use std::fmt;
use std::time::Duration;

use multiway_core::units::Rate;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::loss::{Loss, Probability};

/// Splits `20 Mbit/s` into 20 and `Mbit/s`.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// A number above `u64::MAX` would saturate, so it is refused.
fn whole(value: f64) -> Option<u64> {
    (value >= 0.0 && value < u64::MAX as f64).then_some(value.round() as u64)
}

fn parse_rate(text: &str) -> Option<RateText> {
    if text.trim() == "unlimited" {
        return Some(RateText::Unlimited);
    }
    let (number, unit) = number_and_unit(text)?;
    let scale = match unit.strip_suffix("/s")? {
        "bit" => 1.0,
        "kbit" => 1e3,
        "Mbit" => 1e6,
        "Gbit" => 1e9,
        _ => return None,
    };
    Some(RateText::Limited(Rate::from_bits_per_second(whole(number * scale)?)))
}

fn parse_duration(text: &str) -> Option<DurationText> {
    let (number, unit) = number_and_unit(text)?;
    let nanoseconds = match unit {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(DurationText(Duration::from_nanos(whole(number * nanoseconds)?)))
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let scale = match unit {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    whole(number * scale)
}

fn parse_queue(text: &str) -> Option<QueueText> {
    match number_and_unit(text)? {
        (number, "BDP") => Some(QueueText::BandwidthDelayProducts(number)),
        _ => parse_bytes(text).map(QueueText::Bytes),
    }
}

/// A type read from a string by a function, with an error that says what is wanted.
macro_rules! read_from_text {
    ($name:ident, $parse:expr, $wanted:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text)
                    .ok_or_else(|| de::Error::custom(format_args!(concat!("`{}` is not ", $wanted), text)))
            }
        }
    };
}

/// A rate, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RateText {
    Unlimited,
    Limited(Rate),
}

read_from_text!(
    RateText,
    parse_rate,
    "a rate: write for instance \"20 Mbit/s\", \"500 kbit/s\" or \"unlimited\""
);

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DurationText(pub(super) Duration);

read_from_text!(
    DurationText,
    parse_duration,
    "a time: write for instance \"30 ms\", \"1.5 s\" or \"200 us\""
);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeText(pub(super) u64);

read_from_text!(
    SizeText,
    |text: &str| parse_bytes(text).map(SizeText),
    "a size: write for instance \"10 MB\", \"64 KiB\" or \"500 B\""
);

/// A queue's bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum QueueText {
    Bytes(u64),
    BandwidthDelayProducts(f64),
}

read_from_text!(QueueText, parse_queue, "a queue: write for instance \"64 KiB\" or \"2 BDP\"");

/// Random loss: a number, a percentage, or a table of the Gilbert-Elliott model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LossText(pub(super) Loss);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GilbertElliottTable {
    good_to_bad: ProbabilityText,
    bad_to_good: ProbabilityText,
    #[serde(default)]
    loss_in_good: ProbabilityText,
    loss_in_bad: ProbabilityText,
}

/// A number from 0 to 1, or a percentage.
#[derive(Clone, Copy, Default)]
struct ProbabilityText(Probability);

struct ProbabilityVisitor;

impl Visitor<'_> for ProbabilityVisitor {
    type Value = Probability;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from 0 to 1 or a percentage such as \"1%\"")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Probability, E> {
        Probability::new(value).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Probability, E> {
        self.visit_f64(value as f64)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Probability, E> {
        match number_and_unit(value) {
            Some((percent, "%")) => self.visit_f64(percent / 100.0),
            _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for ProbabilityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ProbabilityVisitor).map(Self)
    }
}

struct LossVisitor;

impl<'de> Visitor<'de> for LossVisitor {
    type Value = Loss;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a loss: a number from 0 to 1, a percentage such as \"1%\", or a table with good_to_bad, \
             bad_to_good, loss_in_bad and loss_in_good"
        )
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Loss, E> {
        ProbabilityVisitor.visit_f64(value).map(Loss::Bernoulli)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Loss, E> {
        ProbabilityVisitor.visit_i64(value).map(Loss::Bernoulli)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Loss, E> {
        ProbabilityVisitor.visit_str(value).map(Loss::Bernoulli)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Loss, A::Error> {
        let table = GilbertElliottTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(Loss::GilbertElliott {
            good_to_bad: table.good_to_bad.0,
            bad_to_good: table.bad_to_good.0,
            loss_in_good: table.loss_in_good.0,
            loss_in_bad: table.loss_in_bad.0,
        })
    }
}

impl<'de> Deserialize<'de> for LossText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LossVisitor).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_and_need_a_unit() {
        let limited = |bits| Some(RateText::Limited(Rate::from_bits_per_second(bits)));
        assert_eq!(parse_rate("20 Mbit/s"), limited(20_000_000));
        assert_eq!(parse_rate("0.5Mbit/s"), limited(500_000));
        assert_eq!(parse_rate("unlimited"), Some(RateText::Unlimited));
        for wrong in ["20", "20 Mbit", "-1 Mbit/s", "20 MB/s", "1e3 bit/s", ""] {
            assert_eq!(parse_rate(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_sizes_and_queues_are_read() {
        assert_eq!(parse_duration("1.5 s"), Some(DurationText(Duration::from_millis(1500))));
        assert_eq!(parse_duration("5"), None);
        assert_eq!(parse_bytes("64 KiB"), Some(65_536));
        assert_eq!(parse_bytes("99999999999999999 GB"), None);
        assert_eq!(parse_queue("1.5 BDP"), Some(QueueText::BandwidthDelayProducts(1.5)));
        assert_eq!(parse_queue("30 kB"), Some(QueueText::Bytes(30_000)));
    }
}
