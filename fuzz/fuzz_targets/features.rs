//! The feature database: any text is either a set of rules that decides, or an error that names a line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::flow::features::{Action, FeatureDatabase};
use multiway_core::mphttp::http::{HeadLimits, RequestHead};

const REQUEST: &[u8] = b"GET /pub/a.tar.xz?name=a.example HTTP/1.1\r\nHost: h\r\nAccept: video/mp4\r\n\r\n";

fuzz_target!(|text: &str| {
    let database = match FeatureDatabase::parse(text) {
        Ok(database) => database,
        Err(error) => return assert!((1..=text.lines().count() + 1).contains(&error.line), "{error}"),
    };
    let (request, _) = RequestHead::parse(REQUEST, HeadLimits::default()).expect("good").expect("whole");
    let decision = database.decide(&request, "cdn.example.org");
    assert!(decision.rule.is_some() || decision.action == Action::Pass);
});
