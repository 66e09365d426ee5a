//! The schema that is published is the one in the code.

use std::path::Path;

use multiway_api::{Event, EventDetail, OPERATIONS, RunResponse, openapi_json};

/// Run with `MULTIWAY_UPDATE=1` to write the file anew.
#[test]
fn the_published_document_is_generated_from_the_types() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.json");
    let current = openapi_json();
    if std::env::var_os("MULTIWAY_UPDATE").is_some() {
        std::fs::write(&file, &current).expect("docs/ is writable");
    }
    let published = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        published == current,
        "docs/api.json is stale: run `MULTIWAY_UPDATE=1 cargo test -p multiway-api`"
    );
}

#[test]
fn every_operation_is_described() {
    let document: serde_json::Value = serde_json::from_str(&openapi_json()).unwrap();
    for (method, path) in OPERATIONS {
        assert!(document["paths"][path][method]["responses"]["200"].is_object(), "{method} {path}");
    }
    assert_eq!(document["paths"].as_object().unwrap().len(), OPERATIONS.len());
}

#[test]
fn events_and_answers_are_tagged_objects() {
    let event = Event {
        unix_ms: 5,
        detail: EventDetail::Inconsistent { host: "h".into(), interface: "wlan0".into(), offset: 9 },
    };
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"unix_ms": 5, "event": "inconsistent", "host": "h", "interface": "wlan0", "offset": 9})
    );
    assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
    let answer = RunResponse::Intercepted { cgroup: "multiway/run-7".into() };
    assert_eq!(serde_json::to_value(&answer).unwrap()["result"], "intercepted");
}
