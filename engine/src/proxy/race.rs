//! Several attempts of which the first to succeed counts (RFC 8305 section 5).

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

/// Runs `attempts` in order and returns the first success, or every failure.
///
/// The next attempt begins when the one before has failed or has taken `stagger`; those begun
/// earlier go on beside it, and end when one succeeds.
pub(crate) async fn race<T, E, A: Future<Output = Result<T, E>>>(
    attempts: impl IntoIterator<Item = A>,
    stagger: Duration,
) -> Result<T, Vec<E>> {
    let mut waiting = attempts.into_iter();
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::new();
    let mut is_exhausted = false;
    loop {
        match waiting.next() {
            Some(attempt) => running.push(attempt),
            None => is_exhausted = true,
        }
        let next = Instant::now() + stagger;
        tokio::select! {
            outcome = running.next() => match outcome {
                Some(Ok(success)) => return Ok(success),
                Some(Err(failure)) => failures.push(failure),
                None => return Err(failures),
            },
            () = sleep_until(next), if !is_exhausted => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const NEVER: Duration = Duration::from_secs(3600);

    type Attempt<'a> = Pin<Box<dyn Future<Output = Result<u8, u8>> + 'a>>;

    #[tokio::test]
    async fn a_fast_first_attempt_stays_alone() {
        let second_begun = AtomicBool::new(false);
        let second = async {
            second_begun.store(true, Ordering::Relaxed);
            Ok(2)
        };
        let attempts: [Attempt<'_>; 2] = [Box::pin(ready(Ok(1))), Box::pin(second)];
        assert_eq!(race(attempts, NEVER).await, Ok(1));
        assert!(!second_begun.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_slow_attempt_is_overtaken() {
        let attempts: [Attempt<'_>; 2] = [Box::pin(pending()), Box::pin(ready(Ok(2)))];
        assert_eq!(race(attempts, SHORT).await, Ok(2));
    }

    #[tokio::test]
    async fn a_failed_attempt_is_replaced_at_once() {
        let attempts: [Attempt<'_>; 2] = [Box::pin(ready(Err(1))), Box::pin(ready(Ok(2)))];
        assert_eq!(race(attempts, NEVER).await, Ok(2));
    }

    #[tokio::test]
    async fn a_slow_attempt_may_still_win() {
        let second_begun = tokio::sync::Notify::new();
        let first = async {
            second_begun.notified().await;
            Ok(1)
        };
        let second = async {
            second_begun.notify_one();
            pending().await
        };
        let attempts: [Attempt<'_>; 2] = [Box::pin(first), Box::pin(second)];
        assert_eq!(race(attempts, SHORT).await, Ok(1));
    }

    #[tokio::test]
    async fn every_failure_is_reported() {
        let attempts = [ready(Err::<u8, u8>(1)), ready(Err(2))];
        assert_eq!(race(attempts, NEVER).await, Err(vec![1, 2]));
        let none: [Attempt<'_>; 0] = [];
        assert_eq!(race(none, NEVER).await, Err(vec![]));
    }
}
