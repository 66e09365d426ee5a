use utoipa::OpenApi;

use crate::{Event, Problem, RunRequest, RunResponse, Status};

/// Every operation of the control socket as (method, path), for routers and tests to agree on.
pub const OPERATIONS: [(&str, &str); 3] =
    [("get", crate::STATUS_PATH), ("post", crate::RUN_PATH), ("get", crate::EVENTS_PATH)];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Multiway",
        description = "What the daemon answers on its control socket, a Unix socket that speaks HTTP."
    ),
    paths(operations::status, operations::run, operations::events),
    components(schemas(crate::GetSummary, Event))
)]
struct Document;

/// The schema as an OpenAPI document, as kept in `docs/api.json`.
pub fn openapi_json() -> String {
    let mut text = Document::openapi().to_pretty_json().expect("the document has only string keys");
    text.push('\n');
    text
}

/// Stand-ins that carry the description of each operation; the engine has the handlers.
#[expect(dead_code, reason = "utoipa describes operations by annotated functions")]
mod operations {
    use super::{Event, Problem, RunRequest, RunResponse, Status};

    /// Paths, flows, listeners and events of the daemon.
    #[utoipa::path(get, path = crate::STATUS_PATH, responses(
        (status = 200, description = "The daemon's status.", body = Status),
        (status = 403, description = "The caller is neither the daemon's user nor in its group.", body = Problem),
    ))]
    fn status() {}

    /// Intercepts the calling process, or offers the proxy instead.
    #[utoipa::path(post, path = crate::RUN_PATH, request_body = RunRequest, responses(
        (status = 200, description = "What was done.", body = RunResponse),
        (status = 400, description = "The request is not understood.", body = Problem),
        (status = 403, description = "The caller may not run programs under this daemon.", body = Problem),
        (status = 500, description = "The control group or the rules could not be made.", body = Problem),
    ))]
    fn run() {}

    /// Events from now on, one JSON object per line, until the caller closes.
    #[utoipa::path(get, path = crate::EVENTS_PATH, responses(
        (status = 200, description = "A stream of events.", body = Event, content_type = "application/x-ndjson"),
        (status = 403, description = "The caller is neither the daemon's user nor in its group.", body = Problem),
    ))]
    fn events() {}
}
