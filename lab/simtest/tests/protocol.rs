//! The test vectors of docs/protocol.md, written and read by the implementation.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::wire::{
    Data, Destination, Frame, FrameReader, Hello, HelloKind, HelloOk, Host, INITIAL_SESSION_WINDOW,
    INITIAL_STREAM_WINDOW, MAX_BODY, MAX_HOST, MAX_SEGMENTS, MAX_STREAMS_AHEAD, MAX_TEXT, MAX_TOKEN, Mark,
    OpenResult, SessionKey, Standing, WireError,
};
use multiway_core::bond::{StreamClass, StreamId, SubflowId};
use multiway_core::units::Rate;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");
const SEED: &[u8] = include_bytes!("../../../fuzz/seeds/bond_frames/vectors");

/// Lines of the fenced block of this name.
fn block(name: &str) -> Vec<&'static str> {
    let fence = format!("```{name}\n");
    let (_, rest) = DOCUMENT.split_once(&fence).expect("the document has the block");
    let (block, _) = rest.split_once("\n```").expect("the block ends");
    block.lines().collect()
}

fn hex(text: &str) -> Bytes {
    assert!(text.len().is_multiple_of(2), "{text}");
    let octet = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(octet).collect()
}

/// What a line says behind its octets.
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn text(&self, name: &str) -> &'a str {
        self.0.get(name).unwrap_or_else(|| panic!("the line has no {name}"))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().expect("a number")
    }

    fn flag(&self, name: &str) -> bool {
        match self.text(name) {
            "yes" => true,
            "no" => false,
            other => panic!("{name} is {other}"),
        }
    }

    fn stream(&self) -> StreamId {
        StreamId(self.number("stream"))
    }

    fn subflow(&self) -> SubflowId {
        SubflowId(self.number("subflow"))
    }

    fn one_of<T: Copy>(&self, name: &str, known: &[(&str, T)]) -> T {
        let text = self.text(name);
        known.iter().find(|(known, _)| *known == text).unwrap_or_else(|| panic!("{name} is {text}")).1
    }
}

fn frame(line: &str) -> Frame {
    let mut words = line.split_whitespace();
    let kind = words.next().expect("a name");
    let fields = Fields(words.map(|word| word.split_once('=').expect("a field")).collect());
    match kind {
        "HELLO" => Frame::Hello(Hello {
            version: fields.number("version"),
            key: SessionKey(hex(fields.text("key"))[..].try_into().expect("16 octets")),
            subflow: fields.subflow(),
            path: fields.number("path").try_into().expect("32 bits"),
            backup: fields.flag("backup"),
            kind: match fields.text("kind") {
                "init" => HelloKind::Init { token: hex(fields.text("token")) },
                "join" => HelloKind::Join,
                other => panic!("kind is {other}"),
            },
        }),
        "HELLO_OK" => Frame::HelloOk(HelloOk {
            version: fields.number("version"),
            max_streams: fields.number("max_streams"),
            max_subflows: fields.number("max_subflows"),
            linger_seconds: fields.number("linger"),
            join_address: fields.text("address").to_owned(),
        }),
        "PING" => Frame::Ping(fields.number("value")),
        "PONG" => Frame::Pong(fields.number("value")),
        "PRIORITY" => Frame::Priority {
            subflow: fields.subflow(),
            standing: fields.one_of(
                "standing",
                &[
                    ("normal", Standing::Normal),
                    ("backup", Standing::Backup),
                    ("suspect", Standing::Suspect),
                    ("gone", Standing::Gone),
                ],
            ),
            sequence: fields.number("sequence"),
        },
        "RTO_REQUEST" => Frame::RtoRequest,
        "RTO" => Frame::Rto(Duration::from_micros(fields.number("micros"))),
        "ADVERTISE" => Frame::Advertise(fields.text("address").to_owned()),
        "PIPE_STATUS" => Frame::PipeStatus {
            subflow: fields.subflow(),
            buffered: fields.number("buffered"),
            rate: Rate::from_bytes_per_second(fields.number("rate")),
        },
        "DRAIN" => Frame::Drain,
        "CLOSE" => Frame::Close { code: fields.number("code"), text: fields.text("text").to_owned() },
        "OPEN" => Frame::Open {
            stream: fields.stream(),
            class: fields.one_of(
                "class",
                &[
                    ("auto", StreamClass::Auto),
                    ("interactive", StreamClass::Interactive),
                    ("bulk", StreamClass::Bulk),
                ],
            ),
            scheduler: fields.one_of(
                "scheduler",
                &[
                    ("min_rtt", SchedulerKind::MinRtt),
                    ("last_received", SchedulerKind::LastReceived),
                    ("ecf", SchedulerKind::Ecf),
                    ("blest", SchedulerKind::Blest),
                    ("redundant", SchedulerKind::Redundant),
                    ("priority", SchedulerKind::Priority),
                ],
            ),
            destination: destination(&fields),
        },
        "OPENED" => Frame::Opened {
            stream: fields.stream(),
            result: fields.one_of(
                "result",
                &[
                    ("connected", OpenResult::Connected),
                    ("forbidden", OpenResult::Forbidden),
                    ("no_such_host", OpenResult::NoSuchHost),
                    ("refused", OpenResult::Refused),
                    ("unreachable", OpenResult::Unreachable),
                    ("timed_out", OpenResult::TimedOut),
                    ("over_limit", OpenResult::OverLimit),
                    ("failed", OpenResult::Failed),
                ],
            ),
        },
        "DATA" => Frame::Data(Data {
            stream: fields.stream(),
            dsn: fields.number("dsn"),
            mark: Mark { idle: fields.flag("idle"), fin: fields.flag("fin") },
            bytes: hex(fields.text("bytes")),
        }),
        "ACK" => Frame::Ack {
            stream: fields.stream(),
            data_ack: fields.number("data_ack"),
            window: fields.number("window"),
        },
        "RESET" => Frame::Reset {
            stream: fields.stream(),
            code: fields.number("code"),
            end: fields.number("end"),
            answer: fields.flag("answer"),
        },
        "WINDOW" => Frame::Window(fields.number("bytes")),
        other => panic!("no frame is called {other}"),
    }
}

fn destination(fields: &Fields<'_>) -> Destination {
    let address = |name| Host::Address(fields.text(name).parse().expect("an address"));
    let host = match (fields.0.contains_key("ipv4"), fields.0.contains_key("ipv6")) {
        (true, _) => address("ipv4"),
        (_, true) => address("ipv6"),
        _ => Host::Name(fields.text("name").to_owned()),
    };
    Destination { host, port: fields.number("port").try_into().expect("a port") }
}

#[test]
fn every_frame_is_written_and_read_as_the_document_has_it() {
    let mut seen = BTreeMap::new();
    let mut everything = Vec::new();
    for line in block("vectors") {
        let (octets, meaning) = line.split_once(' ').expect("octets and a meaning");
        let (octets, expected) = (hex(octets), frame(meaning));
        assert_eq!(expected.to_bytes(), octets, "{meaning}");
        let mut reader = FrameReader::new();
        reader.handle_bytes(octets.clone());
        assert_eq!(reader.next_frame(), Ok(Some(expected.clone())), "{meaning}");
        assert_eq!((reader.next_frame(), reader.held()), (Ok(None), 0), "{meaning}");
        for length in 0..octets.len() {
            let mut reader = FrameReader::new();
            reader.handle_bytes(octets.slice(..length));
            assert_eq!(reader.next_frame(), Ok(None), "{length} octets of {meaning}");
        }
        seen.insert(octets[0], ());
        everything.push((octets, expected));
    }
    let types: Vec<u8> = seen.into_keys().collect();
    assert_eq!(types, (0x01..=0x0A).chain(0x10..=0x15).collect::<Vec<u8>>(), "every type has a vector");

    // All of them behind each other, an octet at a time.
    let mut reader = FrameReader::new();
    for (octets, expected) in everything {
        let last = octets.len() - 1;
        for at in 0..last {
            reader.handle_bytes(octets.slice(at..=at));
            assert_eq!(reader.next_frame(), Ok(None));
        }
        reader.handle_bytes(octets.slice(last..));
        assert_eq!(reader.next_frame(), Ok(Some(expected)));
    }
}

#[test]
fn the_fuzzer_begins_with_every_frame() {
    // In front of them stands the length of the pieces in which they are read.
    let (_, seed) = SEED.split_first().expect("a length");
    let vectors =
        block("vectors").into_iter().map(|line| line.split_once(' ').expect("octets and a meaning").0);
    let octets: Vec<u8> = vectors.flat_map(hex).collect();
    assert!(seed == octets, "fuzz/seeds/bond_frames/vectors is not what the document has");
}

#[test]
fn what_the_document_refuses_is_refused() {
    for line in block("refused") {
        let (octets, reason) = line.split_once(' ').expect("octets and a reason");
        let mut reader = FrameReader::new();
        reader.handle_bytes(hex(octets));
        let found = match reader.next_frame() {
            Err(WireError::UnknownType(_)) => "unknown_type",
            Err(WireError::TooLong(_)) => "too_long",
            Err(WireError::Malformed(_)) => "malformed",
            Ok(frame) => panic!("{line} is read as {frame:?}"),
        };
        assert_eq!(found, reason, "{line}");
    }
}

#[test]
fn what_the_document_skips_is_skipped() {
    for line in block("skipped") {
        let mut reader = FrameReader::new();
        reader.handle_bytes([hex(line), Frame::Drain.to_bytes()].concat().into());
        assert_eq!(reader.next_frame(), Ok(Some(Frame::Drain)), "{line}");
        assert_eq!(reader.held(), 0);
    }
}

#[test]
fn the_documents_limits_are_the_implementations() {
    let limits = [
        format!("| body | {MAX_BODY} |"),
        format!("| token, text, host | {MAX_TOKEN}, {MAX_TEXT}, {MAX_HOST} |"),
        format!("| first windows: stream, session | {INITIAL_STREAM_WINDOW}, {INITIAL_SESSION_WINDOW} |"),
        format!("| runs behind gaps, and DATA frames outstanding, of a stream | {MAX_SEGMENTS} |"),
        format!("| numbers from the lowest unseen on | {MAX_STREAMS_AHEAD} |"),
    ];
    for row in limits {
        assert!(DOCUMENT.contains(&row), "{row}");
    }
}
