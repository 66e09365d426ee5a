//! The configuration file: any text is either a configuration or a fault within the text.

#![no_main]

use libfuzzer_sys::fuzz_target;

// Built from its source, so that fuzzing needs neither tokio nor SQLite.
#[path = "../../engine/src"]
#[allow(dead_code, unused_imports, reason = "the daemon uses the rest")]
mod engine {
    pub(super) mod config;
}

fuzz_target!(|text: &str| {
    let _ = engine::config::parse(text);
});
