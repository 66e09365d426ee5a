//! When the first request is sent once more, on another path.

mod common;

use std::time::Duration;

use common::fast;
use multiway_core::mphttp::download::{Action, Ask, Download, DownloadConfig, LaneId, Opening, PathOffer};
use multiway_core::paths::{PathEstimate, PathId};
use multiway_core::units::Timestamp;

/// As long as servers hold a poll, and longer.
const LONG: Duration = Duration::from_secs(3600);

/// When the second path gets the first request too, of a server that answers nothing; `told` is what the
/// kernel says of it as time passes.
fn repeated_after(
    opening: Opening,
    told: impl Fn(Duration) -> Option<bool>,
    limit: Duration,
) -> Option<Duration> {
    let config = DownloadConfig { opening, open_all_paths_at_once: false, ..fast() };
    let offer = |path| PathOffer { path: PathId(path), metered: false, estimate: PathEstimate::default() };
    let mut download = Download::new(config, vec![offer(0), offer(1)], Timestamp::ZERO);
    let mut first: Option<LaneId> = None;
    let mut now = Timestamp::ZERO;
    while now - Timestamp::ZERO < limit {
        let passed = now - Timestamp::ZERO;
        while let Some(action) = download.poll_action() {
            match action {
                Action::Connect { lane, path: PathId(0) } => {
                    first = Some(lane);
                    download.handle_connected(lane, Some(Duration::from_millis(30)), now);
                }
                Action::Connect { .. } => return Some(passed),
                Action::Request { .. } | Action::Close { .. } => {}
            }
        }
        if download.is_over() {
            return None;
        }
        if let (Some(lane), Some(all)) = (first, told(passed)) {
            download.handle_acknowledged(lane, all);
        }
        now = download.poll_timeout(now).expect("it is not over");
        download.handle_timeout(now);
    }
    assert!(!download.is_over(), "it was given up");
    None
}

#[test]
fn a_request_that_the_server_holds_is_sent_once_however_long() {
    let held = |passed: Duration| Some(passed > Duration::from_millis(40));
    assert_eq!(repeated_after(Opening::AsClient, held, LONG), None);
}

#[test]
fn a_request_that_nobody_acknowledges_is_repeated_soon() {
    for opening in [Opening::AsClient, Opening::Range { begin: 0 }] {
        let after = repeated_after(opening, |_| Some(false), LONG).expect("the other path is tried");
        assert!(after < Duration::from_secs(2), "{after:?}");
    }
}

#[test]
fn where_nothing_is_known_of_a_request_it_is_repeated_late() {
    let after = repeated_after(Opening::AsClient, |_| None, LONG).expect("the other path is tried");
    assert!((Duration::from_secs(4)..Duration::from_secs(6)).contains(&after), "{after:?}");
}

#[test]
fn a_path_that_does_not_connect_is_not_waited_for_where_another_does() {
    let after = |answers: bool| {
        let config = DownloadConfig { opening: Opening::AsClient, open_all_paths_at_once: true, ..fast() };
        let offer =
            |path| PathOffer { path: PathId(path), metered: false, estimate: PathEstimate::default() };
        let mut download = Download::new(config, vec![offer(0), offer(1)], Timestamp::ZERO);
        let mut second_path = None;
        let mut now = Timestamp::ZERO;
        loop {
            while let Some(action) = download.poll_action() {
                match action {
                    Action::Connect { lane, path: PathId(1) } => {
                        second_path = Some(lane);
                        if answers {
                            download.handle_connected(lane, Some(Duration::from_millis(40)), now);
                        }
                    }
                    Action::Request { ask: Ask::AsClient, lane } if Some(lane) == second_path => {
                        return now - Timestamp::ZERO;
                    }
                    _ => {}
                }
            }
            now = download.poll_timeout(now).expect("it is not over");
            download.handle_timeout(now);
        }
    };
    let (with, without) = (after(true), after(false));
    assert!(with <= Duration::from_millis(200), "{with:?}");
    assert!(without >= Duration::from_millis(400), "{without:?}");
}
