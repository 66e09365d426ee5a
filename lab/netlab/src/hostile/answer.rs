//! What is answered: the honest answer, and how each misdeed bends it.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use super::misdeed::Misdeed;
use super::request::Request;

/// By how many bytes ranges are shifted or stretched.
const SHIFT_BYTES: u64 = 1000;

/// More than any client should keep of a head.
const OVERSIZED_HEAD_BYTES: usize = 1 << 20;

const BOUNDARY: &str = "multiway-hostile-boundary";

const LOGIN_PAGE: &[u8] = b"<!doctype html><title>Welcome</title><form>Room number: <input></form>\n";

/// Two versions of an object, equally long.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) bytes: Arc<[u8]>,
    pub(super) other: Arc<[u8]>,
}

impl Object {
    pub(super) fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// What an answer depends on beside the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    pub(super) client: IpAddr,
    /// Whether another request was being answered when this one came.
    pub(super) is_extra: bool,
    /// How many requests came before.
    pub(super) serial: u64,
}

/// How the body's end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length,
    /// The answer has what it has: a contradiction, or a length of its own.
    AsGiven,
    Chunked,
    UntilClose,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    /// The head a byte at a time.
    TrickledHead,
    /// Random bytes in place of all.
    Garbage,
    /// Nothing; the connection stays open.
    Silence,
    /// Nothing; the connection is reset.
    Reset,
    /// Half of the body, then what is said.
    Half(Ending),
    /// All, then bytes that belong to nothing.
    WithExtraBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Close,
    Reset,
    Stall,
}

/// An answer before it is written.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    version: &'static str,
    status: u16,
    headers: Vec<(&'static str, String)>,
    source: Arc<[u8]>,
    body: Range<u64>,
    pub(super) framing: Framing,
    pub(super) delivery: Delivery,
    pub(super) interim: bool,
    /// The connection closes afterwards, announced or not.
    pub(super) closes: bool,
}

impl Answer {
    fn new(status: u16, source: Arc<[u8]>, body: Range<u64>) -> Self {
        Self {
            version: "HTTP/1.1",
            status,
            headers: Vec::new(),
            source,
            body,
            framing: Framing::Length,
            delivery: Delivery::Whole,
            interim: false,
            closes: false,
        }
    }

    fn of_text(status: u16, content_type: &str, text: &[u8]) -> Self {
        let mut answer = Self::new(status, text.into(), 0..text.len() as u64);
        answer.set("Content-Type", content_type);
        answer
    }

    fn whole(object: &Object) -> Self {
        let mut answer = Self::new(200, Arc::clone(&object.bytes), 0..object.size());
        answer.describe_object();
        answer
    }

    fn partial(object: &Object, range: Range<u64>) -> Self {
        let mut answer = Self::new(206, Arc::clone(&object.bytes), range.clone());
        answer.describe_object();
        answer.set("Content-Range", content_range(&range, object.size()));
        answer
    }

    fn describe_object(&mut self) {
        self.set("Content-Type", "application/octet-stream");
        self.set("Accept-Ranges", "bytes");
        self.set("ETag", ETAG);
        self.set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT");
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.remove(name);
        self.headers.push((name, value.into()));
    }

    fn remove(&mut self, name: &str) {
        self.headers.retain(|(known, _)| *known != name);
    }

    pub(super) fn body(&self) -> &[u8] {
        let at = |offset: u64| usize::try_from(offset).expect("the object is in memory");
        &self.source[at(self.body.start)..at(self.body.end)]
    }

    pub(super) fn head(&self) -> String {
        let mut head = format!("{} {} {}\r\n", self.version, self.status, reason(self.status));
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match self.framing {
            Framing::Length => head.push_str(&format!("Content-Length: {}\r\n", self.body().len())),
            Framing::Chunked => head.push_str("Transfer-Encoding: chunked\r\n"),
            Framing::AsGiven | Framing::UntilClose => {}
        }
        head.push_str("\r\n");
        head
    }
}

const ETAG: &str = "\"version-1\"";

fn content_range(range: &Range<u64>, total: u64) -> String {
    format!("bytes {}-{}/{total}", range.start, range.end - 1)
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        302 => "Found",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// What an origin without misdeeds answers.
pub(super) fn honest(request: &Request, object: &Object) -> Answer {
    let mut answer = match request.method.as_str() {
        "GET" | "HEAD" => {
            let changed = request.header("if-range").is_some_and(|validator| validator != ETAG);
            match request.range(object.size()) {
                Some(Ok(range)) if !changed => Answer::partial(object, range),
                Some(Err(())) if !changed => not_satisfiable(object),
                _ => Answer::whole(object),
            }
        }
        method => {
            let text = format!("{method} brought {} bytes\n", request.body_bytes());
            Answer::of_text(200, "text/plain", text.as_bytes())
        }
    };
    if request.wants_close() {
        answer.set("Connection", "close");
        answer.closes = true;
    }
    answer
}

fn not_satisfiable(object: &Object) -> Answer {
    let mut answer = Answer::of_text(416, "text/plain", b"outside\n");
    answer.set("Content-Range", format!("bytes */{}", object.size()));
    answer
}

/// What an origin with this misdeed makes of the honest answer.
pub(super) fn bent(
    misdeed: Misdeed,
    honest: Answer,
    request: &Request,
    object: &Object,
    circumstances: Circumstances,
) -> Answer {
    let mut answer = honest;
    let range = (answer.status == 206).then(|| answer.body.clone());
    match misdeed {
        Misdeed::IgnoresRange => return Answer::whole(object),
        Misdeed::NoRanges => {
            answer = Answer::whole(object);
            answer.set("Accept-Ranges", "none");
        }
        Misdeed::ShiftedRange => {
            if let Some(range) = range {
                return Answer::partial(object, shifted(&range, object.size()));
            }
        }
        Misdeed::ShiftedBytes => {
            if let Some(range) = range {
                // As many bytes as were claimed, from the wrong place.
                let length = range.end - range.start;
                let from = shifted(&range, object.size()).start.min(object.size() - length);
                answer.body = from..from + length;
            }
        }
        Misdeed::OtherTotal
        | Misdeed::UnknownTotal
        | Misdeed::NoContentRange
        | Misdeed::GarbledContentRange => {
            if let Some(range) = range {
                bend_content_range(&mut answer, misdeed, &range, object.size());
            }
        }
        Misdeed::ShorterRange => {
            if let Some(range) = range {
                let half = (range.end - range.start).div_ceil(2);
                return Answer::partial(object, range.start..range.start + half);
            }
        }
        Misdeed::LongerRange => {
            if let Some(range) = range {
                return Answer::partial(object, range.start..object.size().min(range.end + SHIFT_BYTES));
            }
        }
        Misdeed::Multipart => {
            if let Some(range) = range {
                return multipart(object, &range);
            }
        }
        Misdeed::UnaskedPartial => {
            if range.is_none() {
                return Answer::partial(object, 0..object.size().div_ceil(2));
            }
        }
        Misdeed::NotSatisfiable => {
            if request.header("range").is_some() {
                return not_satisfiable(object);
            }
        }
        Misdeed::ServerError => {
            if request.header("range").is_some() {
                return Answer::of_text(500, "text/plain", b"ranges are too much\n");
            }
        }
        Misdeed::TooManyRequests if circumstances.is_extra => {
            return Answer::of_text(429, "text/plain", b"one at a time\n");
        }
        Misdeed::Unavailable if circumstances.is_extra => {
            answer = Answer::of_text(503, "text/plain", b"one at a time\n");
            answer.set("Retry-After", "1");
        }
        Misdeed::ResetsExtra if circumstances.is_extra => answer.delivery = Delivery::Reset,
        Misdeed::TooManyRequests | Misdeed::Unavailable | Misdeed::ResetsExtra => {}
        Misdeed::ClosesEarly => answer.delivery = Delivery::Half(Ending::Close),
        Misdeed::ResetsMidBody => answer.delivery = Delivery::Half(Ending::Reset),
        Misdeed::StallsMidBody => answer.delivery = Delivery::Half(Ending::Stall),
        Misdeed::NeverAnswers => answer.delivery = Delivery::Silence,
        Misdeed::TricklesHead => answer.delivery = Delivery::TrickledHead,
        Misdeed::OversizedHead => answer.set("X-Padding", "x".repeat(OVERSIZED_HEAD_BYTES)),
        Misdeed::Garbage => answer.delivery = Delivery::Garbage,
        Misdeed::TwoLengths => {
            let length = answer.body().len();
            answer.headers.push(("Content-Length", length.to_string()));
            answer.headers.push(("Content-Length", (length + 10).to_string()));
            answer.framing = Framing::AsGiven;
        }
        Misdeed::HugeLength => {
            answer.set("Content-Length", "99999999999999999999");
            answer.framing = Framing::AsGiven;
        }
        Misdeed::ExtraBytes => answer.delivery = Delivery::WithExtraBytes,
        Misdeed::InterimAnswers => answer.interim = true,
        Misdeed::Chunked | Misdeed::UnknownLength => {
            answer = Answer::whole(object);
            answer.remove("Accept-Ranges");
            answer.closes = misdeed == Misdeed::UnknownLength;
            answer.framing = if answer.closes { Framing::UntilClose } else { Framing::Chunked };
        }
        Misdeed::ChunkedRange => answer.framing = Framing::Chunked,
        Misdeed::NoTransform => answer.set("Cache-Control", "no-transform"),
        Misdeed::Http10 => {
            answer = Answer::whole(object);
            answer.remove("Accept-Ranges");
            answer.version = "HTTP/1.0";
            answer.closes = true;
        }
        Misdeed::RedirectsByClient => {
            if !request.path.starts_with(MOVED) {
                return redirect(format!("{MOVED}{}{}", circumstances.client, request.path));
            }
        }
        Misdeed::RedirectLoop => return redirect(request.path.clone()),
        Misdeed::CaptivePortal => return Answer::of_text(200, "text/html", LOGIN_PAGE),
        Misdeed::OtherVersion | Misdeed::OtherVersionOtherEtag | Misdeed::OtherVersionNoEtag => {
            // Texts of errors have one version.
            if matches!(answer.status, 200 | 206) {
                answer.source = Arc::clone(&object.other);
            }
            match misdeed {
                Misdeed::OtherVersionOtherEtag => answer.set("ETag", "\"version-2\""),
                Misdeed::OtherVersionNoEtag => without_validators(&mut answer),
                _ => {}
            }
        }
        Misdeed::WeakEtag => answer.set("ETag", format!("W/{ETAG}")),
        Misdeed::EtagChanges => answer.set("ETag", format!("\"answer-{}\"", circumstances.serial)),
        Misdeed::NoValidators => without_validators(&mut answer),
        Misdeed::WrongCoding => answer.set("Content-Encoding", "gzip"),
        Misdeed::ClosesAfterEach => {
            answer.set("Connection", "close");
            answer.closes = true;
        }
        Misdeed::ClosesSilently => answer.closes = true,
        // These are about several requests, not about one answer.
        Misdeed::DropsPipelined | Misdeed::SwapsPipelined => {}
    }
    answer
}

/// Where redirected clients are sent; what is there behaves.
pub(super) const MOVED: &str = "/moved-to-";

fn redirect(location: String) -> Answer {
    let mut answer = Answer::of_text(302, "text/plain", b"elsewhere\n");
    answer.set("Location", location);
    answer
}

fn without_validators(answer: &mut Answer) {
    answer.remove("ETag");
    answer.remove("Last-Modified");
}

fn bend_content_range(answer: &mut Answer, misdeed: Misdeed, range: &Range<u64>, size: u64) {
    match misdeed {
        Misdeed::OtherTotal => answer.set("Content-Range", content_range(range, size + 1)),
        Misdeed::UnknownTotal => {
            answer.set("Content-Range", format!("bytes {}-{}/*", range.start, range.end - 1));
        }
        Misdeed::GarbledContentRange => {
            answer.set("Content-Range", format!("bytes {}..{} of {size}", range.start, range.end));
        }
        _ => answer.remove("Content-Range"),
    }
}

/// The range moved on, or back where it would leave the object.
fn shifted(range: &Range<u64>, size: u64) -> Range<u64> {
    let length = range.end - range.start;
    let start = if range.start + SHIFT_BYTES < size {
        range.start + SHIFT_BYTES
    } else {
        range.start.saturating_sub(SHIFT_BYTES)
    };
    start..size.min(start + length)
}

fn multipart(object: &Object, range: &Range<u64>) -> Answer {
    let part = Answer::partial(object, range.clone());
    let mut body = format!(
        "--{BOUNDARY}\r\nContent-Type: application/octet-stream\r\nContent-Range: {}\r\n\r\n",
        content_range(range, object.size())
    )
    .into_bytes();
    body.extend_from_slice(part.body());
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    let length = body.len() as u64;
    let mut answer = Answer { source: body.into(), body: 0..length, ..part };
    answer.remove("Content-Range");
    answer.set("Content-Type", format!("multipart/byteranges; boundary={BOUNDARY}"));
    answer
}
