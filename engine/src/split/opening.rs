use multiway_core::mphttp::download::{Ask, Download, LaneId, tuning};
use multiway_core::mphttp::http::{
    ByteRange, HeadLimits, Representation, RequestHead, ResponseHead, WhyNot, response_may_split,
};
use multiway_core::units::Timestamp;

/// The answer to the first request.
#[derive(Debug)]
pub struct Opened {
    /// The connection that answered.
    pub lane: LaneId,
    /// What it was asked.
    pub ask: Ask,
    /// 1xx heads that came before.
    pub interim: Vec<ResponseHead>,
    /// The answer's head.
    pub head: ResponseHead,
}

impl Opened {
    /// Whether this brings the object, or a part of it that was asked for: anything else may be the word of
    /// a portal or of a server that only this path leads to.
    pub(super) fn has_object(&self, request: &RequestHead) -> bool {
        match self.head.status() {
            200 => true,
            206 => matches!(self.ask, Ask::Part { .. }) || request.headers().contains("Range"),
            _ => false,
        }
    }

    /// Whether this may be the answer to a range, or to several requests at once, where the client's
    /// own request would have been answered otherwise.
    pub fn is_due_to_splitting(&self) -> bool {
        let status = self.head.status();
        matches!(self.ask, Ask::Part { .. })
            && (status == 206 || (status >= 400 && !matches!(status, 401 | 403 | 404 | 407 | 410)))
    }

    /// What the answer says of the object, or why it is not split. `request` is the client's own.
    pub fn representation(&self, request: &RequestHead, minimum_size: u64) -> Result<Representation, WhyNot> {
        let Ask::Part { start, end } = self.ask else {
            return response_may_split(request, &self.head, minimum_size);
        };
        if self.head.status() != 206 {
            return response_may_split(request, &self.head, minimum_size);
        }
        let range = ByteRange::from_span(start..end).ok_or(WhyNot::UnsatisfiableRange)?;
        let asked = RequestHead::parse(&request.with_range(range), HeadLimits::default());
        let Ok(Some((asked, _))) = asked else { return Err(WhyNot::UnsatisfiableRange) };
        response_may_split(&asked, &self.head, 0)
    }
}

/// Answers without the object, each with when it came, that wait for those of preferred paths.
///
/// The first request goes to another path also when a packet was lost on the preferred one. What that path
/// says of the object is welcome then; what it says instead of it (a redirection, an error) would not have
/// been heard without Multiway, and so comes to the client only when the preferred path has nothing to say.
#[derive(Debug, Default)]
pub(super) struct Reserve(Vec<(Opened, Timestamp)>);

impl Reserve {
    pub(super) fn keep(&mut self, opened: Opened, now: Timestamp) {
        self.0.push((opened, now));
    }

    pub(super) fn contains(&self, lane: LaneId) -> bool {
        self.0.iter().any(|(opened, _)| opened.lane == lane)
    }

    /// An answer whose time has come: no preferred path is asked any more, or it had time enough.
    pub(super) fn take(&mut self, download: &Download, now: Timestamp) -> Option<Opened> {
        self.0.retain(|(opened, _)| download.has_lane(opened.lane));
        let due = self.0.iter().position(|(opened, since)| {
            now - *since >= tuning::PREFERRED_ANSWER_PATIENCE || !download.is_outranked(opened.lane)
        })?;
        Some(self.0.swap_remove(due).0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use multiway_core::mphttp::download::{Action, DownloadConfig, Opening, PathOffer, Preference};
    use multiway_core::paths::{PathEstimate, PathId};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const REDIRECTION: &[u8] = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n";
    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
    const PARTIAL: &[u8] = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/9\r\n\r\n";

    fn answer(lane: LaneId, head: &[u8]) -> Opened {
        let (head, _) = ResponseHead::parse(head, HeadLimits::default()).expect("it is one").expect("whole");
        Opened { lane, ask: Ask::AsClient, interim: Vec::new(), head }
    }

    /// A download whose first path does not connect, so that its second is asked as well: when it is,
    /// and the connections.
    fn asked_twice() -> (Download, Timestamp, [LaneId; 2]) {
        let config = DownloadConfig {
            preference: Preference::Fast,
            opening: Opening::AsClient,
            open_all_paths_at_once: false,
            memory_bytes: 1 << 20,
            tail: Vec::new(),
        };
        let offer =
            |path| PathOffer { path: PathId(path), metered: false, estimate: PathEstimate::default() };
        let mut now = Timestamp::ZERO;
        let mut download = Download::new(config, vec![offer(0), offer(1)], now);
        let mut lanes = Vec::new();
        while lanes.len() < 2 {
            while let Some(action) = download.poll_action() {
                if let Action::Connect { lane, .. } = action {
                    lanes.push(lane);
                }
            }
            if lanes.len() < 2 {
                now = download.poll_timeout(now).expect("it is not over");
                download.handle_timeout(now);
            }
        }
        download.handle_connected(lanes[1], None, now);
        (download, now, [lanes[0], lanes[1]])
    }

    #[test]
    fn only_what_was_asked_for_counts_as_the_object() {
        let (request, _) = RequestHead::parse(REQUEST, HeadLimits::default()).expect("valid").expect("whole");
        let (_, _, [lane, _]) = asked_twice();
        assert!(answer(lane, WHOLE).has_object(&request));
        assert!(!answer(lane, PARTIAL).has_object(&request), "no part was asked for");
        assert!(!answer(lane, REDIRECTION).has_object(&request));
    }

    #[test]
    fn a_redirection_of_the_second_path_waits_for_the_first() {
        let (mut download, now, [first, second]) = asked_twice();
        assert!(download.is_outranked(second) && !download.is_outranked(first));
        let mut reserve = Reserve::default();
        reserve.keep(answer(second, REDIRECTION), now);
        assert!(reserve.contains(second) && reserve.take(&download, now).is_none());
        // The first path has nothing to say: it refuses.
        download.handle_closed(first, now);
        assert_eq!(reserve.take(&download, now).map(|opened| opened.lane), Some(second));
        assert!(reserve.take(&download, now).is_none(), "it is taken once");
    }

    #[test]
    fn no_answer_waits_for_ever() {
        let (mut download, mut now, [first, second]) = asked_twice();
        download.handle_connected(first, None, now);
        let mut reserve = Reserve::default();
        let since = now;
        reserve.keep(answer(second, REDIRECTION), now);
        while reserve.take(&download, now).is_none() {
            assert!(now - since < tuning::PREFERRED_ANSWER_PATIENCE * 2);
            now = now + Duration::from_millis(100);
            download.handle_timeout(now);
        }
        assert!(now - since >= tuning::PREFERRED_ANSWER_PATIENCE && download.is_outranked(second));
    }

    #[test]
    fn an_answer_whose_path_went_away_is_dropped() {
        let (mut download, now, [_, second]) = asked_twice();
        let mut reserve = Reserve::default();
        reserve.keep(answer(second, REDIRECTION), now);
        download.handle_path_down(PathId(1), now);
        assert!(reserve.take(&download, now).is_none() && !reserve.contains(second));
    }
}
