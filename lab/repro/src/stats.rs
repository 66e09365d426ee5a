//! The few statistics that tables need.

/// The middle value; the mean of the two in the middle when their number is even.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The value below which this part (0 to 1) of the values lies.
pub(crate) fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[((last as f64 * part).round() as usize).min(last)])
}

/// Jain's fairness index: 1 when all got the same, 1/n when one got all.
pub(crate) fn fairness(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    (squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_needs_no_order() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn fairness_is_one_for_equals_and_a_share_for_one() {
        assert_eq!(fairness(&[2.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(fairness(&[4.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn quantiles_lie_among_the_values() {
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 0.5), Some(3.0));
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 1.0), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
