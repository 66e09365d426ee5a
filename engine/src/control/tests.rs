use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use multiway_api::{EventDetail, Interception};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use multiway_edge::pidfd::ProcessHandle;

struct Fake {
    adopted: Mutex<Vec<(Caller, String)>>,
    events: broadcast::Sender<Event>,
}

impl Backend for Fake {
    fn status(&self) -> Status {
        Status {
            version: "test".into(),
            uptime_seconds: 1,
            paths: vec![],
            flows: vec![],
            relays: vec![],
            listeners: vec![],
            interception: Interception {
                active: false,
                reason: None,
                users: vec![],
                groups: vec![],
                cgroups: vec![],
            },
            events: vec![],
        }
    }

    fn adopt(&self, caller: Caller, program: &str) -> Result<RunResponse, AdoptError> {
        if program == "refuse" {
            return Err(AdoptError::Refused { reason: "as asked".into() });
        }
        self.adopted.lock().unwrap().push((caller, program.to_owned()));
        Ok(RunResponse::Intercepted { cgroup: "multiway/1".into() })
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
}

struct Running {
    backend: Arc<Fake>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<std::io::Result<()>>,
}

fn start(path: &Path, access: Access) -> Running {
    let backend = Arc::new(Fake { adopted: Mutex::default(), events: broadcast::channel(8).0 });
    let socket = ControlSocket::bind(path, access).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shared: Arc<dyn Backend> = backend.clone();
    let server = tokio::spawn(serve(socket, shared, async {
        let _ = stopped.await;
    }));
    Running { backend, stop, server }
}

async fn ask(path: &Path, request: &str) -> (String, String) {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn post(body: &str) -> String {
    format!("POST /v1/run HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn status_is_told_and_the_socket_goes_away_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/control.sock");
    let running = start(&path, Access::default());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (head, body) = ask(&path, "GET /v1/status HTTP/1.0\r\n\r\n").await;
    assert!(head.ends_with("200 OK"), "{head}");
    assert_eq!(serde_json::from_str::<Status>(&body).unwrap(), running.backend.status());
    running.stop.send(()).unwrap();
    running.server.await.unwrap().unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_program_is_known_by_the_kernels_word_not_by_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let running = start(&path, Access { everyone_may_run: true, group: None });
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    let (head, body) = ask(&path, &post(r#"{"program": "curl", "pid": 1}"#)).await;
    assert!(head.ends_with("200 OK"), "{head} {body}");
    let adopted = running.backend.adopted.lock().unwrap().clone();
    assert_eq!(adopted.len(), 1);
    assert_eq!(adopted[0].1, "curl");
    assert_eq!(adopted[0].0.pid, Some(std::process::id()));
    assert!(adopted[0].0.still_runs());
    assert_eq!(Some(adopted[0].0.user), access::own_user());
}

#[tokio::test]
async fn bad_requests_and_failures_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let _running = start(&path, Access::default());
    for (request, status, says) in [
        (post("not json"), "400", "not understood"),
        (post("{}"), "400", "program"),
        (post(r#"{"program": "refuse"}"#), "500", "as asked"),
        ("GET /v2/else HTTP/1.0\r\n\r\n".to_owned(), "404", "/v1/status"),
    ] {
        let (head, body) = ask(&path, &request).await;
        let problem: multiway_api::Problem = serde_json::from_str(&body).unwrap();
        assert!(head.contains(status) && problem.message.contains(says), "{head} {problem:?}");
    }
}

#[tokio::test]
async fn events_come_as_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let running = start(&path, Access::default());
    let mut stream = BufReader::new(UnixStream::connect(&path).await.unwrap());
    stream.write_all(b"GET /v1/events HTTP/1.0\r\n\r\n").await.unwrap();
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
    }
    let event = Event { unix_ms: 1, detail: EventDetail::FeaturesReloaded { rules: 3 } };
    running.backend.events.send(event.clone()).unwrap();
    line.clear();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
}

#[tokio::test]
async fn a_killed_daemons_socket_is_replaced_and_a_living_ones_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dropped listener leaves its name behind");
    let first = ControlSocket::bind(&path, Access::default()).unwrap();
    let second = ControlSocket::bind(&path, Access::default());
    assert!(matches!(second, Err(ControlError::AnotherDaemon { .. })), "{second:?}");
    drop(first);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_in_the_sockets_place_is_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    std::fs::write(&path, "precious").unwrap();
    let refused = ControlSocket::bind(&path, Access::default());
    assert!(matches!(refused, Err(ControlError::NoSocket { .. })), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_configured_group_may_connect_and_others_may_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let own = std::fs::metadata(directory.path()).unwrap().gid();
    let socket = ControlSocket::bind(&path, Access { group: Some(own), everyone_may_run: false }).unwrap();
    let made = std::fs::metadata(socket.path()).unwrap();
    assert_eq!((made.permissions().mode() & 0o777, made.gid()), (0o660, own));
}

#[test]
fn where_everyone_may_run_programs_status_stays_with_owner_and_group() {
    let stranger = Caller { user: 4_000_000, group: 4_000_001, pid: None, process: None };
    let open = Access { everyone_may_run: true, group: Some(4_000_001) };
    assert!(open.may_see_status(&stranger));
    assert!(!Access { group: None, ..open }.may_see_status(&stranger));
    assert!(!Access { group: Some(7), ..open }.may_see_status(&stranger));
    assert!(open.may_see_status(&Caller { user: 0, group: 0, ..stranger.clone() }));
    assert!(!stranger.still_runs());
}

#[test]
fn a_number_that_another_process_of_the_same_user_has_now_is_not_the_callers() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let ended = ProcessHandle::of(child.id()).unwrap();
    child.wait().unwrap();
    let (user, group) = (access::own_user().unwrap(), 0);
    let pid = Some(std::process::id());
    assert!(!Caller { user, group, pid, process: Some(Arc::new(ended)) }.still_runs());
    let running = ProcessHandle::of(std::process::id()).unwrap();
    assert!(Caller { user, group, pid, process: Some(Arc::new(running)) }.still_runs());
    assert!(Caller { user, group, pid, process: None }.still_runs(), "as well as an old kernel can tell");
}

#[tokio::test]
async fn a_user_with_many_connections_is_told_and_has_room_again_when_they_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let _running = start(&path, Access::default());
    let mut silent = Vec::new();
    for _ in 0..doors::MOST_OF_A_USER {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let mut refused = UnixStream::connect(&path).await.unwrap();
    let mut answer = String::new();
    refused.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(" 503 ") && answer.contains("try again"), "{answer}");
    drop(silent);
    let again = async {
        loop {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            let _ = stream.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n").await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            if answer.starts_with(b"HTTP/1.0 200") {
                break;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), again).await.expect("there is room");
}

#[tokio::test(start_paused = true)]
async fn who_never_finishes_a_request_is_cut_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let _running = start(&path, Access::default());
    for begun in ["", "GET /v1/sta", "POST /v1/run HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // Cut off with an explanation or without one.
        let _ = stream.read_to_string(&mut answer).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
}

#[tokio::test]
async fn an_answered_connection_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c");
    let _running = start(&path, Access::default());
    let (head, _) = ask(&path, "GET /v1/status HTTP/1.1\r\nHost: multiway\r\n\r\n").await;
    assert!(head.ends_with("200 OK"), "{head}");
}
