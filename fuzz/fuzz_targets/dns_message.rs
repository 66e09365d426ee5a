//! DNS messages: whatever a server or an application sends is read, cut or refused, never worse.

#![no_main]

use libfuzzer_sys::fuzz_target;

// The engine keeps this module to itself, so it is built from its source here.
#[path = "../../engine/src/dns"]
#[allow(dead_code, reason = "the resolver uses the rest")]
mod dns {
    mod message;

    use std::time::Duration;

    use hickory_proto::op::ResponseCode;
    use multiway_core::flow::names::{HostName, NameMemory};
    use multiway_core::paths::{Family, PathId};
    use multiway_core::units::Timestamp;

    /// Takes `bytes` for a query, and for the response to one.
    pub(super) fn handle(bytes: &[u8]) {
        let _ = message::refusal(bytes, ResponseCode::ServFail);
        let Ok(envelope) = message::Envelope::read(bytes) else { return };
        let cut = message::fit_udp(bytes, [bytes, &[0; 2000]].concat());
        assert!(cut.len() <= 1232, "a response over UDP has a bound");
        assert!(message::Envelope::read(&cut).is_ok_and(|cut| cut.id == envelope.id && cut.is_truncated));

        let name = HostName::parse("a.example").expect("a name");
        let (name, family) = envelope.address_question().unwrap_or((name, Family::V4));
        let query = message::address_query(&name, family, envelope.id).expect("a query for a good name");
        assert!(message::Envelope::read(&query).is_ok_and(|query| !query.answers(&envelope)));

        let Ok(answer) = message::read_answer(bytes, &name, family) else { return };
        let (mut memory, path) = (NameMemory::new(4), PathId(1));
        memory.remember(&name, family, path, answer.outcome, answer.ttl, Timestamp::ZERO);
        let known = memory.lookup(&name, family, path, Timestamp::ZERO);
        assert!(known.is_some() || answer.ttl == Duration::ZERO);
    }
}

fuzz_target!(|bytes: &[u8]| dns::handle(bytes));
