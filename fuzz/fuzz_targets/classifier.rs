//! The flow classifier: more bytes never change a verdict.

#![no_main]

use libfuzzer_sys::fuzz_target;
use multiway_core::flow::classify::{Classified, classify};

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = input;
    let whole = classify(bytes);
    let part = classify(&bytes[..usize::from(cut).min(bytes.len())]);
    assert!(part == Classified::NeedMore || part == whole, "{part:?}, then {whole:?}");
});
