use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use multiway_api::{
    EVENTS_PATH, Event, Problem, ProblemCode, RUN_PATH, RunRequest, RunResponse, STATUS_PATH, Status,
};
use tokio::sync::broadcast::{self, error::RecvError};

use super::doors::Doors;
use super::{Access, AdoptError, Backend, Caller, ControlSocket};

/// Largest request; a [`RunRequest`] holds one name.
const LARGEST_REQUEST: usize = 64 * 1024;

#[derive(Clone)]
struct Shared {
    backend: Arc<dyn Backend>,
    access: Access,
}

/// Answers on `socket` until `stopped` is ready; the socket's name is gone when this returns.
pub async fn serve(
    mut socket: ControlSocket,
    backend: Arc<dyn Backend>,
    stopped: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = socket.listener.take().expect("a socket is served once, since this takes it");
    let shared = Shared { backend, access: socket.access };
    let router = Router::new()
        .route(STATUS_PATH, get(status))
        .route(RUN_PATH, post(run))
        .route(EVENTS_PATH, get(events))
        .fallback(|| async { Refusal::not_found() })
        .layer(DefaultBodyLimit::max(LARGEST_REQUEST))
        .layer(map_response(last))
        .with_state(shared)
        .into_make_service_with_connect_info::<Peer>();
    // Not a graceful shutdown: that would wait for those who listen to events.
    tokio::select! {
        served = axum::serve(Doors::new(listener), router) => served,
        () = stopped => Ok(()),
    }
}

/// The kernel's word on the peer; absent when the kernel gave none.
#[derive(Debug, Clone)]
struct Peer(Option<Caller>);

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        Self(stream.io().caller.clone())
    }
}

/// One connection is for one request: who has their answer makes room.
async fn last(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn status(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Status>, Refusal> {
    shared.require_status(&peer)?;
    Ok(Json(shared.backend.status()))
}

async fn run(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Bytes,
) -> Result<Json<RunResponse>, Refusal> {
    let request: RunRequest = serde_json::from_slice(&body).map_err(|error| Refusal {
        status: StatusCode::BAD_REQUEST,
        code: ProblemCode::BadRequest,
        message: format!("the request is not understood: {error}"),
    })?;
    let caller = peer.0.ok_or_else(|| Refusal::from(AdoptError::UnknownProcess))?;
    let backend = Arc::clone(&shared.backend);
    let adopted = tokio::task::spawn_blocking(move || backend.adopt(caller, &request.program)).await;
    match adopted {
        Ok(answer) => Ok(Json(answer?)),
        Err(panic) => Err(AdoptError::Refused { reason: panic.to_string() }.into()),
    }
}

async fn events(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Response, Refusal> {
    shared.require_status(&peer)?;
    let body = Body::from_stream(stream::unfold(shared.backend.events(), |mut events| async {
        let line = next_line(&mut events).await?;
        Some((Ok::<_, Infallible>(line), events))
    }));
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// The next event as a line; `None` when there will be no more.
async fn next_line(events: &mut broadcast::Receiver<Event>) -> Option<Bytes> {
    loop {
        match events.recv().await {
            Ok(event) => {
                let mut line = serde_json::to_vec(&event).expect("an event has only string keys");
                line.push(b'\n');
                return Some(line.into());
            }
            // A reader that is too slow misses events rather than hold up the daemon.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return None,
        }
    }
}

impl Shared {
    fn require_status(&self, peer: &Peer) -> Result<(), Refusal> {
        if peer.0.as_ref().is_some_and(|caller| self.access.may_see_status(caller)) {
            return Ok(());
        }
        Err(Refusal {
            status: StatusCode::FORBIDDEN,
            code: ProblemCode::Forbidden,
            message: "status and events are for root, the daemon's own user and its configured group"
                .to_owned(),
        })
    }
}

struct Refusal {
    status: StatusCode,
    code: ProblemCode,
    message: String,
}

impl Refusal {
    fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: ProblemCode::BadRequest,
            message: format!("there are only {STATUS_PATH}, {RUN_PATH} and {EVENTS_PATH}"),
        }
    }
}

impl From<AdoptError> for Refusal {
    fn from(error: AdoptError) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            code: ProblemCode::Failed,
            message: error.to_string(),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(Problem { code: self.code, message: self.message })).into_response()
    }
}
