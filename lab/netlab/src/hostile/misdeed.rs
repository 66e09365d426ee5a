//! The wrong (or unusual) things an origin does.

use std::fmt;
use std::str::FromStr;

/// Declares the misdeeds with their names for URLs, so that none lacks a name or a description.
macro_rules! misdeeds {
    ($($(#[doc = $description:literal])+ $variant:ident = $name:literal,)+) => {
        /// What an origin does other than the usual. Those that RFC 9110 allows are marked "legal": a
        /// client has to get the right bytes all the same.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Misdeed {
            $($(#[doc = $description])+ $variant,)+
        }

        impl Misdeed {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name, as the first part of a URL's path asks for it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What it is, in a sentence.
            pub fn description(self) -> String {
                let lines: &[&str] = match self {
                    $(Self::$variant => &[$($description),+],)+
                };
                lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
            }
        }
    };
}

misdeeds! {
    /// 200 and the whole object to a request for a range. Legal.
    IgnoresRange = "ignores-range",
    /// 206 with the range 1000 bytes further on than asked, and says so.
    ShiftedRange = "shifted-range",
    /// 206 that claims the range asked for and sends the bytes 1000 further on.
    ShiftedBytes = "shifted-bytes",
    /// 206 whose `Content-Range` gives a total size one byte too large.
    OtherTotal = "other-total",
    /// 206 whose `Content-Range` gives `*` for the total size. Legal.
    UnknownTotal = "unknown-total",
    /// 206 without `Content-Range`.
    NoContentRange = "no-content-range",
    /// 206 whose `Content-Range` cannot be read.
    GarbledContentRange = "garbled-content-range",
    /// 206 with half of the range asked for, and says so. Legal.
    ShorterRange = "shorter-range",
    /// 206 that goes on 1000 bytes past the range asked for, and says so.
    LongerRange = "longer-range",
    /// 206 with `multipart/byteranges` for a single range.
    Multipart = "multipart",
    /// 206 to a request without `Range`.
    UnaskedPartial = "unasked-partial",
    /// 416 to every request for a range.
    NotSatisfiable = "not-satisfiable",
    /// 500 to every request for a range.
    ServerError = "server-error",
    /// 429 while another request is being answered. Legal.
    TooManyRequests = "too-many-requests",
    /// 503 with `Retry-After` while another request is being answered. Legal.
    Unavailable = "unavailable",
    /// Resets the connection while another request is being answered.
    ResetsExtra = "resets-extra",
    /// Closes after half of the body.
    ClosesEarly = "closes-early",
    /// Resets the connection after half of the body.
    ResetsMidBody = "resets-mid-body",
    /// Falls silent after half of the body and keeps the connection open.
    StallsMidBody = "stalls-mid-body",
    /// Takes the request and never answers.
    NeverAnswers = "never-answers",
    /// Sends the head a byte at a time. Legal.
    TricklesHead = "trickles-head",
    /// Sends a head of a megabyte.
    OversizedHead = "oversized-head",
    /// Sends random bytes in place of a head.
    Garbage = "garbage",
    /// Gives two lengths that contradict each other.
    TwoLengths = "two-lengths",
    /// Gives a length that no 64 bits hold.
    HugeLength = "huge-length",
    /// Sends more bytes after the end of the body.
    ExtraBytes = "extra-bytes",
    /// Answers 100 and 103 before the answer proper. Legal.
    InterimAnswers = "interim-answers",
    /// 200, chunked, without a length, whatever was asked. Legal.
    Chunked = "chunked",
    /// 206 in chunks. Legal.
    ChunkedRange = "chunked-range",
    /// 200 whose body ends with the connection. Legal.
    UnknownLength = "unknown-length",
    /// `Cache-Control: no-transform`. Legal.
    NoTransform = "no-transform",
    /// Speaks HTTP/1.0: no ranges, and the connection closes. Legal.
    Http10 = "http-1.0",
    /// `Accept-Ranges: none`, and 200 to a request for a range. Legal.
    NoRanges = "no-ranges",
    /// Redirects each client to another place. Legal.
    RedirectsByClient = "redirects-by-client",
    /// Redirects to itself.
    RedirectLoop = "redirect-loop",
    /// A login page in place of the object.
    CaptivePortal = "captive-portal",
    /// Another version: as long, other bytes, the same validators.
    OtherVersion = "other-version",
    /// Another version: as long, other bytes, its own entity tag. Legal.
    OtherVersionOtherEtag = "other-version-other-etag",
    /// Another version: as long, other bytes, no validators. Legal.
    OtherVersionNoEtag = "other-version-no-etag",
    /// The same bytes with a weak entity tag. Legal.
    WeakEtag = "weak-etag",
    /// The same bytes with an entity tag that is new in each answer. Legal.
    EtagChanges = "etag-changes",
    /// The same bytes without validators. Legal.
    NoValidators = "no-validators",
    /// Claims a content coding that the bytes have not.
    WrongCoding = "wrong-coding",
    /// Closes after each answer and says so. Legal.
    ClosesAfterEach = "closes-after-each",
    /// Closes after each answer without saying so. Legal.
    ClosesSilently = "closes-silently",
    /// Forgets requests that arrive while it answers another.
    DropsPipelined = "drops-pipelined",
    /// Answers two pipelined requests in the wrong order.
    SwapsPipelined = "swaps-pipelined",
}

impl fmt::Display for Misdeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No misdeed has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMisdeed(String);

impl fmt::Display for UnknownMisdeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> = Misdeed::ALL.iter().map(|misdeed| misdeed.name()).collect();
        write!(f, "no origin does `{}`; there are {}", self.0, known.join(", "))
    }
}

impl std::error::Error for UnknownMisdeed {}

impl FromStr for Misdeed {
    type Err = UnknownMisdeed;

    fn from_str(name: &str) -> Result<Self, UnknownMisdeed> {
        Self::ALL
            .iter()
            .find(|misdeed| misdeed.name() == name)
            .copied()
            .ok_or_else(|| UnknownMisdeed(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_misdeed_is_found_by_its_name_and_described() {
        for &misdeed in Misdeed::ALL {
            assert_eq!(misdeed.to_string().parse(), Ok(misdeed));
            assert!(misdeed.description().ends_with('.'), "{misdeed}");
        }
        assert!("no-such".parse::<Misdeed>().unwrap_err().to_string().contains("ignores-range"));
    }
}
