//! Learns names from answers that carry addresses over HTTP (FLEETY section 4.1).
//!
//! The answer came over one path and is remembered for it. The other paths look the name up with
//! their own DNS servers as soon as one of its addresses is connected to.

use std::time::Duration;

use multiway_core::flow::http_dns::{AnswerFormat, MAX_BODY};
use multiway_core::mphttp::http::RequestHead;
use multiway_core::paths::PathId;

use crate::dns::Resolver;

/// How long an answer is believed that does not say so itself, as long as most DNS answers.
const USUAL_TTL: Duration = Duration::from_secs(300);

/// The body of an answer that names may be learnt from.
#[derive(Debug, Default)]
pub(super) struct Collected {
    path: Option<PathId>,
    body: Vec<u8>,
}

impl Collected {
    /// Adds payload that came over `path`; what goes beyond the largest body looked at is dropped.
    pub(super) fn take(&mut self, path: Option<PathId>, payload: &[u8]) {
        self.path = path;
        // One byte more than is looked at, so that a body that was cut is known as too large.
        let room = (MAX_BODY + 1).saturating_sub(self.body.len());
        self.body.extend_from_slice(&payload[..payload.len().min(room)]);
    }

    /// Remembers the names found in the answer to `request`.
    pub(super) fn learn(self, resolver: &Resolver, format: &AnswerFormat, request: &RequestHead) {
        let Some(path) = self.path else { return };
        match format.extract(request, &self.body) {
            Ok(answers) => {
                for answer in answers {
                    let ttl = answer.ttl_seconds.map_or(USUAL_TTL, |s| Duration::from_secs(s.into()));
                    resolver.learn(path, &answer.name, &answer.addresses, ttl);
                }
            }
            Err(error) => tracing::debug!(%error, "an HTTP DNS answer was not understood"),
        }
    }
}
