//! Name answers over HTTP: any body gives names with addresses, or an error.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use multiway_core::flow::features::{Action, FeatureDatabase};
use multiway_core::flow::http_dns::AnswerFormat;
use multiway_core::mphttp::http::{HeadLimits, RequestHead};

static FORMATS: LazyLock<Vec<AnswerFormat>> = LazyLock::new(|| {
    let answers = [
        r#"{ format = "list", name_parameter = "name" }"#,
        r#"{ format = "json", entries = "dns", name = "host", addresses = "ips", ttl = "ttl" }"#,
        r#"{ format = "json", name_parameter = "name", addresses = "Answer.*.data", ttl = "Answer.*.TTL" }"#,
    ];
    let format = |answer| {
        let rule = format!("[[rule]]\nname = \"d\"\naction = \"dns-answer\"\nanswer = {answer}");
        match FeatureDatabase::parse(&rule).expect("a good rule").decide(&request(), "h").action {
            Action::DnsAnswer(format) => format,
            other => unreachable!("the rule has no other action than {other:?}"),
        }
    };
    answers.into_iter().map(format).collect()
});

fn request() -> RequestHead {
    let bytes = b"GET /d?name=a.example HTTP/1.1\r\nHost: h\r\n\r\n";
    RequestHead::parse(bytes, HeadLimits::default()).expect("good").expect("whole").0
}

fuzz_target!(|body: &[u8]| {
    for format in FORMATS.iter() {
        for answer in format.extract(&request(), body).unwrap_or_default() {
            assert!(!answer.addresses.is_empty());
        }
    }
});
