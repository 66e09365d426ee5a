//! Numbers as people read them.

/// Bytes with a decimal prefix: `4.2 MB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A rate with a decimal prefix: `18.3 Mbit/s`.
pub(crate) fn rate(bits_per_second: u64) -> String {
    scaled(bits_per_second, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// A part of a whole, from 0 to 1, in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

fn scaled(count: u64, units: &[&str]) -> String {
    let mut value = count as f64;
    let mut unit = 0;
    // 999.95 and more would be shown as 1000.0.
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} {}", units[0]) } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_decimal_and_a_prefix() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(4_200_000), "4.2 MB");
        assert_eq!(rate(18_340_000), "18.3 Mbit/s");
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(percent(0.456), "46%");
    }
}
