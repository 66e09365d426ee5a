//! What a response other than 206 means for an extra range request.

use std::time::Duration;

use super::headers::{parse_decimal, trim};
use super::range::ContentRange;
use super::response::ResponseHead;

/// A server's refusal of a range request on a further path. None of these fails the transfer: the paths
/// that work carry on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 2xx other than 206: the range was not served.
    #[error("the server does not serve ranges here (status {status})")]
    RangeIgnored {
        /// The status; mostly 200.
        status: u16,
    },
    /// 416: the object has another size here.
    #[error("the server cannot satisfy the range (416)")]
    NotSatisfiable {
        /// The size that the server says the object has.
        total: Option<u64>,
    },
    /// 429 or 503: too many connections or requests for now.
    #[error("the server asks for fewer requests (status {status})")]
    Busy {
        /// 429 or 503.
        status: u16,
        /// How long to wait, when the server says so.
        retry_after: Option<Duration>,
    },
    /// 3xx: this path leads elsewhere; a captive network does this too.
    #[error("the server redirects on this path (status {status})")]
    Redirected {
        /// The status.
        status: u16,
    },
    /// Any other 4xx.
    #[error("the server denies the request on this path (status {status})")]
    Denied {
        /// The status.
        status: u16,
    },
    /// Any other 5xx, or no known class.
    #[error("the server failed on this path (status {status})")]
    Failed {
        /// The status.
        status: u16,
    },
}

/// Why `response`, the answer to an extra range request, brings no bytes; `None` for a 206.
/// Interim (1xx) responses are not for here.
pub fn refusal(response: &ResponseHead) -> Option<Refusal> {
    let status = response.status();
    Some(match status {
        206 => return None,
        200..300 => Refusal::RangeIgnored { status },
        416 => {
            let total = match response.content_range() {
                Some(Ok(ContentRange::Unsatisfied { total })) => Some(total),
                _ => None,
            };
            Refusal::NotSatisfiable { total }
        }
        429 | 503 => Refusal::Busy { status, retry_after: retry_after(response) },
        300..400 => Refusal::Redirected { status },
        400..500 => Refusal::Denied { status },
        _ => Refusal::Failed { status },
    })
}

/// `Retry-After` as a time span (RFC 9110 section 10.2.3). A date is taken relative to the server's own
/// `Date`, so that no clock of ours is needed or trusted.
fn retry_after(response: &ResponseHead) -> Option<Duration> {
    let value = trim(response.headers().get("retry-after")?);
    if let Some(seconds) = parse_decimal(value) {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let then = date(std::str::from_utf8(value).ok()?)?;
    let now = date(response.headers().get_str("date")?)?;
    Some(then.duration_since(now).unwrap_or(Duration::ZERO))
}
