//! DNS messages as far as the resolver reads them.
//!
//! A message is passed on as it came, so [`Envelope`] reads only what every message must have;
//! the records are read for A and AAAA alone ([`read_answer`]).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable};
use multiway_core::flow::names::{HostName, Outcome};
use multiway_core::paths::Family;

/// Octets of a DNS header, RFC 1035 section 4.1.1.
const HEADER: usize = 12;

/// Response size over UDP for a client that named none, RFC 1035 section 4.2.1.
const CLASSIC_UDP_PAYLOAD: usize = 512;

/// Most sent over UDP whatever the client names: fits every path unfragmented (DNS flag day 2020).
const LARGEST_UDP_PAYLOAD: usize = 1232;

/// CNAMEs followed in one answer; real chains are shorter, circles end here.
const MAX_CHAIN: usize = 16;

/// Life of `localhost`'s addresses in seconds: a week, as in the zones that servers had for it.
const LOCALHOST_TTL: u32 = 604_800;

/// Life of a negative answer that names none, below the 5 minutes that RFC 2308 section 7 allows.
const NEGATIVE_TTL: Duration = Duration::from_secs(30);

/// Life of a negative answer that names a long one.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(300);

/// A message that breaks the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed DNS message")]
pub(super) struct Malformed;

/// The header and the one question of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Envelope {
    pub(super) id: u16,
    pub(super) is_response: bool,
    pub(super) op_code: OpCode,
    pub(super) is_truncated: bool,
    pub(super) response_code: ResponseCode,
    pub(super) question: Query,
}

impl Envelope {
    /// Reads the start of `message`; any number of questions but one is malformed, RFC 9619.
    pub(super) fn read(message: &[u8]) -> Result<Self, Malformed> {
        let counts = message.get(4..6).ok_or(Malformed)?;
        if message.len() < HEADER || counts != [0, 1] {
            return Err(Malformed);
        }
        let [a, b, flags_high, flags_low] = *message.first_chunk().expect("a header is longer than 4 octets");
        let mut decoder = BinDecoder::new(message);
        decoder.read_slice(HEADER).map_err(|_| Malformed)?;
        let question = Query::read(&mut decoder).map_err(|_| Malformed)?;
        Ok(Self {
            id: u16::from_be_bytes([a, b]),
            is_response: flags_high & 0x80 != 0,
            op_code: OpCode::from_u8((flags_high >> 3) & 0x0f),
            is_truncated: flags_high & 0x02 != 0,
            response_code: ResponseCode::from_low(flags_low & 0x0f),
            question,
        })
    }

    /// The name and family asked for, when the question is for addresses.
    pub(super) fn address_question(&self) -> Option<(HostName, Family)> {
        let family = match self.question.query_type() {
            RecordType::A => Family::V4,
            RecordType::AAAA => Family::V6,
            _ => return None,
        };
        (self.question.query_class() == DNSClass::IN)
            .then(|| HostName::parse(&self.question.name().to_ascii()).ok())
            .flatten()
            .map(|name| (name, family))
    }

    /// Whether the question is for `localhost` or a name under it, of whatever type.
    pub(super) fn is_for_localhost(&self) -> bool {
        let name = self.question.name();
        name.iter().next_back().is_some_and(|label| label.eq_ignore_ascii_case(b"localhost"))
            && self.question.query_class() == DNSClass::IN
    }

    /// True when this is the answer to `query`: same id, same question.
    ///
    /// The other two things an answer is known by, RFC 5452 section 9, are the addresses and
    /// ports, which the connected socket compares.
    pub(super) fn answers(&self, query: &Self) -> bool {
        self.is_response && self.id == query.id && self.question == query.question
    }
}

/// Replaces a message's id.
pub(super) fn set_id(message: &mut [u8], id: u16) {
    if let Some(place) = message.first_chunk_mut() {
        *place = id.to_be_bytes();
    }
}

/// A recursive query for the addresses of `name`.
pub(super) fn address_query(name: &HostName, family: Family, id: u16) -> Result<Vec<u8>, Malformed> {
    let record_type = match family {
        Family::V4 => RecordType::A,
        Family::V6 => RecordType::AAAA,
    };
    let mut name = Name::from_ascii(name.as_str()).map_err(|_| Malformed)?;
    name.set_fqdn(true);
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, record_type));
    message.to_vec().map_err(|_| Malformed)
}

/// An answer without records, for a `query` that cannot be answered.
///
/// Bytes that are not even a header get none.
pub(super) fn refusal(query: &[u8], code: ResponseCode) -> Option<Vec<u8>> {
    blank(query, code)?.to_vec().ok()
}

/// The answer to `query` for a name that is this device: the loopback's addresses, or that there is
/// nothing else of this name. RFC 6761 section 6.3.
pub(super) fn localhost_answer(query: &[u8], asked: &Envelope) -> Option<Vec<u8>> {
    let mut message = blank(query, ResponseCode::NoError)?;
    let address: Option<RData> = match asked.question.query_type() {
        RecordType::A => Some(RData::A(Ipv4Addr::LOCALHOST.into())),
        RecordType::AAAA => Some(RData::AAAA(Ipv6Addr::LOCALHOST.into())),
        _ => None,
    };
    if let Some(address) = address {
        message.add_answer(Record::from_rdata(asked.question.name().clone(), LOCALHOST_TTL, address));
    }
    // RFC 6891 section 6.1.1: who speaks EDNS is answered in it.
    if Message::from_vec(query).is_ok_and(|query| query.edns.is_some()) {
        let mut edns = Edns::new();
        edns.set_max_payload(LARGEST_UDP_PAYLOAD as u16);
        message.set_edns(edns);
    }
    message.to_vec().ok()
}

/// The beginning of an answer to `query`.
fn blank(query: &[u8], code: ResponseCode) -> Option<Message> {
    let [a, b, flags, ..] = *query.first_chunk::<HEADER>()?;
    let mut metadata =
        Metadata::new(u16::from_be_bytes([a, b]), hickory_proto::op::MessageType::Response, OpCode::Query);
    metadata.op_code = OpCode::from_u8((flags >> 3) & 0x0f);
    metadata.recursion_desired = flags & 0x01 != 0;
    metadata.recursion_available = true;
    metadata.response_code = code;
    let mut message = Message::new(metadata.id, metadata.message_type, metadata.op_code);
    message.metadata = metadata;
    if let Ok(envelope) = Envelope::read(query) {
        message.add_query(envelope.question);
    }
    Some(message)
}

/// `response` as it may go to the sender of `query` over UDP: whole, or cut to its question with
/// the truncation bit set.
pub(super) fn fit_udp(query: &[u8], response: Vec<u8>) -> Vec<u8> {
    let offered = Message::from_vec(query).ok().and_then(|m| m.edns.map(|e| usize::from(e.max_payload())));
    let room = offered.unwrap_or(CLASSIC_UDP_PAYLOAD).clamp(CLASSIC_UDP_PAYLOAD, LARGEST_UDP_PAYLOAD);
    if response.len() <= room {
        return response;
    }
    let mut cut = Vec::with_capacity(room);
    cut.extend_from_slice(&response[..HEADER]);
    cut[2] |= 0x02;
    cut[6..].fill(0);
    if let Ok(question) = Envelope::read(&response).map(|envelope| envelope.question)
        && let Ok(bytes) = question.to_bytes()
    {
        cut.extend_from_slice(&bytes);
        return cut;
    }
    cut[4..6].fill(0);
    cut
}

/// What a response says of the addresses it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    pub(super) ttl: Duration,
    /// Where the chain of CNAMEs goes on, when the server left that to the asker.
    pub(super) continues_at: Option<HostName>,
}

/// Reads the answer to the question for the addresses of `name`.
///
/// Only records that the question leads to count, through CNAMEs in any order.
pub(super) fn read_answer(response: &[u8], name: &HostName, family: Family) -> Result<Answer, Malformed> {
    let message = Message::from_vec(response).map_err(|_| Malformed)?;
    let mut owner = name.clone();
    let mut ttl = u32::MAX;
    let mut chain = 0;
    let owned_by = |record: &Record, owner: &HostName| {
        record.dns_class == DNSClass::IN
            && HostName::parse(&record.name.to_ascii()).is_ok_and(|name| name == *owner)
    };
    loop {
        let records = || message.answers.iter().filter(|record| owned_by(record, &owner));
        let mut addresses = Vec::new();
        for record in records() {
            if let Some(address) = record.data.ip_addr()
                && Family::of(address) == family
            {
                addresses.push(address);
                ttl = ttl.min(record.ttl);
            }
        }
        if !addresses.is_empty() {
            let ttl = Duration::from_secs(u64::from(ttl));
            return Ok(Answer { outcome: Outcome::Addresses(addresses), ttl, continues_at: None });
        }
        let alias = records().find_map(|record| match &record.data {
            RData::CNAME(target) => Some((HostName::parse(&target.0.to_ascii()), record.ttl)),
            _ => None,
        });
        let Some((target, alias_ttl)) = alias else { break };
        chain += 1;
        if chain > MAX_CHAIN {
            return Err(Malformed);
        }
        owner = target.map_err(|_| Malformed)?;
        ttl = ttl.min(alias_ttl);
    }
    let negative = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(Duration::from_secs(u64::from(record.ttl.min(soa.minimum)))),
        _ => None,
    });
    let outcome = match message.metadata.response_code {
        ResponseCode::NXDomain => Outcome::NoSuchName,
        _ => Outcome::Addresses(Vec::new()),
    };
    // RFC 2308 section 2.2: a chain that the server followed to its end carries the end's SOA.
    let is_unfinished = chain > 0 && negative.is_none() && outcome != Outcome::NoSuchName;
    Ok(Answer {
        outcome,
        ttl: negative.unwrap_or(NEGATIVE_TTL).min(MAX_NEGATIVE_TTL),
        continues_at: is_unfinished.then_some(owner),
    })
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, CNAME, SOA};

    use super::*;

    fn host(text: &str) -> HostName {
        HostName::parse(text).expect("a literal of this test")
    }

    fn name(text: &str) -> Name {
        Name::from_ascii(text).expect("a literal of this test")
    }

    fn response(answers: Vec<Record>) -> Message {
        let query = address_query(&host("www.example.com"), Family::V4, 7).expect("valid");
        let mut message = Message::from_vec(&query).expect("valid").into_response();
        message.add_answers(answers);
        message
    }

    fn alias(from: &str, to: &str, ttl: u32) -> Record {
        Record::from_rdata(name(from), ttl, RData::CNAME(CNAME(name(to))))
    }

    fn address(of: &str, last: u8, ttl: u32) -> Record {
        Record::from_rdata(name(of), ttl, RData::A(A::new(203, 0, 113, last)))
    }

    fn read(message: &Message) -> Result<Answer, Malformed> {
        read_answer(&message.to_vec().expect("valid"), &host("www.example.com"), Family::V4)
    }

    #[test]
    fn a_chain_is_followed_in_any_order_and_lives_as_its_shortest_link() {
        let answer = read(&response(vec![
            address("edge.example.net.", 5, 300),
            alias("cdn.example.net.", "edge.example.net.", 20),
            alias("WWW.example.com.", "cdn.example.net.", 60),
            address("unrelated.example.org.", 9, 5),
        ]))
        .expect("valid");
        assert_eq!(answer.outcome, Outcome::Addresses(vec!["203.0.113.5".parse().expect("valid")]));
        assert_eq!(answer.ttl, Duration::from_secs(20));
        assert_eq!(answer.continues_at, None);
    }

    #[test]
    fn a_chain_in_a_circle_is_refused() {
        let message = response(vec![
            alias("www.example.com.", "a.example.com.", 60),
            alias("a.example.com.", "www.example.com.", 60),
        ]);
        assert_eq!(read(&message), Err(Malformed));
    }

    #[test]
    fn a_chain_that_the_server_left_open_says_where_it_goes_on() {
        let answer = read(&response(vec![alias("www.example.com.", "a.example.net.", 60)])).expect("valid");
        assert_eq!(answer.continues_at, Some(host("a.example.net")));
    }

    #[test]
    fn a_missing_name_lives_as_its_zone_says() {
        let mut message = response(Vec::new());
        message.metadata.response_code = ResponseCode::NXDomain;
        let soa = SOA::new(name("ns.example.com."), name("a.example.com."), 1, 2, 3, 4, 45);
        message.add_authority(Record::from_rdata(name("example.com."), 900, RData::SOA(soa)));
        let answer = read(&message).expect("valid");
        assert_eq!(answer.outcome, Outcome::NoSuchName);
        assert_eq!(answer.ttl, Duration::from_secs(45));
    }

    #[test]
    fn an_answer_is_known_by_its_id_and_question() {
        let query = address_query(&host("www.example.com"), Family::V4, 7).expect("valid");
        let asked = Envelope::read(&query).expect("valid");
        let mut bytes = response(Vec::new()).to_vec().expect("valid");
        assert!(Envelope::read(&bytes).expect("valid").answers(&asked));
        set_id(&mut bytes, 8);
        assert!(!Envelope::read(&bytes).expect("valid").answers(&asked));
        let other = address_query(&host("www.example.com"), Family::V6, 7).expect("valid");
        assert!(!Envelope::read(&other).expect("valid").answers(&asked), "another question");
        assert!(!asked.answers(&asked), "a query is no answer");
    }

    #[test]
    fn what_a_datagram_cannot_hold_is_cut_to_its_question() {
        let query = address_query(&host("www.example.com"), Family::V4, 7).expect("valid");
        let small = response(vec![address("www.example.com.", 1, 5)]).to_vec().expect("valid");
        assert_eq!(fit_udp(&query, small.clone()), small);
        let many = (0..200).map(|last| address("www.example.com.", last, 5)).collect();
        let cut = fit_udp(&query, response(many).to_vec().expect("valid"));
        assert!(cut.len() <= CLASSIC_UDP_PAYLOAD);
        let envelope = Envelope::read(&cut).expect("valid");
        assert!(envelope.is_truncated);
        assert!(Message::from_vec(&cut).expect("valid").answers.is_empty());
    }

    #[test]
    fn a_refusal_repeats_the_question() {
        let query = address_query(&host("www.example.com"), Family::V4, 7).expect("valid");
        let bytes = refusal(&query, ResponseCode::ServFail).expect("valid");
        let envelope = Envelope::read(&bytes).expect("valid");
        assert!(envelope.answers(&Envelope::read(&query).expect("valid")));
        assert_eq!(envelope.response_code, ResponseCode::ServFail);
        assert_eq!(refusal(&query[..11], ResponseCode::FormErr), None);
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for length in 0..40 {
            let _ = Envelope::read(&vec![0xff; length]);
            assert_eq!(Envelope::read(&vec![0; length]), Err(Malformed));
        }
    }
}
