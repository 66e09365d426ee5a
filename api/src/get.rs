//! How a download went.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a download by `multiway get` went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GetSummary {
    /// What was asked for.
    pub url: String,
    /// Where it was written.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Size of the object.
    pub bytes: u64,
    /// Bytes that were already in a partial file and were not fetched again.
    pub resumed_bytes: u64,
    /// Wall-clock time until the last byte was written; what the disk then takes to keep it is not in it.
    pub seconds: f64,
    /// What each path contributed; paths that were not used are listed with zero.
    pub paths: Vec<GetPath>,
    /// What was compared.
    pub verification: Verification,
    /// Why the download was not what was first planned, in order; empty when all went as planned.
    pub fallbacks: Vec<Fallback>,
    /// SHA-256 of the object in hexadecimal, when a checksum was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// What one path contributed to a download.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GetPath {
    /// The path's interface.
    pub interface: String,
    /// Bytes of the object that were taken from it.
    pub bytes: u64,
    /// Its part of the bytes fetched, from 0 to 1.
    pub share: f64,
    /// Bytes taken from it over the time from its first request to its last byte.
    pub mean_bits_per_second: u64,
    /// Requests made on it.
    pub requests: u32,
}

/// What was compared at the boundaries between paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// Boundaries whose overlap was compared.
    pub boundaries_checked: u64,
    /// Boundaries whose overlap differed.
    pub mismatches: u64,
}

/// A departure from the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fallback {
    /// Interface of the path concerned; absent when the whole transfer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}
