//! Network namespaces for tests: each a thread that runs what it is given.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unreachable_pub, missing_docs, reason = "shared by test binaries only")]
#![allow(clippy::print_stderr, reason = "a skipped test must say so")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of its own, gone when dropped.
pub struct Namespace {
    jobs: mpsc::Sender<Job>,
    thread_id: i32,
}

/// A fresh namespace with its loopback up; `None`, and a word on why, without the privilege.
pub fn namespace() -> Option<Namespace> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let (ready, started) = mpsc::channel();
    thread::spawn(move || {
        let unshared = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        ready.send(unshared.map(|()| nix::unistd::gettid().as_raw())).unwrap();
        for job in inbox {
            job();
        }
    });
    match started.recv().unwrap() {
        Ok(thread_id) => {
            let namespace = Namespace { jobs, thread_id };
            namespace.sh("ip link set lo up");
            Some(namespace)
        }
        Err(error) => {
            eprintln!("SKIPPED: no network namespace can be made here ({error}); run as root");
            None
        }
    }
}

impl Namespace {
    /// Runs `job` inside and gives its result; its panic is the caller's.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (reply, result) = mpsc::channel();
        self.jobs
            .send(Box::new(move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                reply.send(outcome).unwrap();
            }))
            .unwrap();
        result.recv().unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs a shell script inside and gives what it printed.
    pub fn sh(&self, script: &str) -> String {
        let script = script.to_owned();
        self.run(move || {
            let output = Command::new("sh").args(["-ec", &script]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{script}\n{error}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// Starts a process inside.
    pub fn spawn(&self, mut command: Command) -> Child {
        self.run(move || command.spawn().unwrap())
    }

    /// Joins `name` here and `peer_name` in `peer` by a virtual cable, both up.
    pub fn cable(&self, name: &str, peer: &Namespace, peer_name: &str) {
        let peer_id = peer.thread_id;
        self.sh(&format!(
            "ip link add {name} type veth peer name {peer_name} netns {peer_id}\nip link set {name} up"
        ));
        peer.sh(&format!("ip link set {peer_name} up"));
    }
}

/// A device with Wi-Fi and cellular, and the internet they lead to.
pub struct TwoPaths {
    pub device: Namespace,
    pub internet: Namespace,
}

/// Server addresses in [`TwoPaths::internet`].
pub const SERVER_V4: &str = "192.0.2.1";
pub const SERVER_V6: &str = "2001:db8:5::1";

/// wlan0 (10.1.0.2, 2001:db8:1::2) and wwan0 (10.2.0.2, 2001:db8:2::2), default routes on both.
pub fn two_paths() -> Option<TwoPaths> {
    let (device, internet) = (namespace()?, namespace()?);
    internet.sh(&format!("ip addr add {SERVER_V4}/32 dev lo; ip addr add {SERVER_V6}/128 dev lo"));
    for (number, name) in [(1, "wlan0"), (2, "wwan0")] {
        device.cable(name, &internet, &format!("to-{name}"));
        internet.sh(&format!(
            "ip addr add 10.{number}.0.1/24 dev to-{name}
             ip addr add 2001:db8:{number}::1/64 dev to-{name} nodad"
        ));
        device.sh(&format!(
            "ip addr add 10.{number}.0.2/24 dev {name}
             ip addr add 2001:db8:{number}::2/64 dev {name} nodad
             ip route add default via 10.{number}.0.1 dev {name} metric {number}00
             ip -6 route add default via 2001:db8:{number}::1 dev {name} metric {number}00"
        ));
    }
    Some(TwoPaths { device, internet })
}

/// Accepts connections on `address` inside, answers each with the client's address as text, closes.
pub fn serve_peer_address(namespace: &Namespace, address: SocketAddr) {
    serve(namespace, address, |stream| stream.peer_addr().unwrap().ip().to_string());
}

/// Accepts connections on `address` inside, answers each with what `answer` says, closes.
pub fn serve(
    namespace: &Namespace,
    address: SocketAddr,
    answer: impl Fn(&TcpStream) -> String + Send + 'static,
) {
    namespace.run(move || {
        let listener = TcpListener::bind(address).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let text = answer(&stream);
                // A client that does not wait for its answer is its own affair.
                let _ = std::io::Write::write_all(&mut stream, text.as_bytes());
            }
        });
    });
}

/// Set for processes made by [`role`].
const ROLE: &str = "MULTIWAY_TEST_ROLE";

/// Has this test binary run one of its ignored tests as a process of its own.
pub fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, name);
    command
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// [`role`], with capabilities taken away by setpriv(1).
pub fn role_without(capabilities: &str, name: &str) -> Command {
    let plain = role(name);
    let mut command = Command::new("setpriv");
    command
        .args(["--inh-caps", capabilities, "--bounding-set", capabilities])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env(ROLE, name);
    command
}

/// True in a process made by [`role`]; false when all ignored tests are run, which would do to the
/// host what is meant for a namespace.
pub fn is_role() -> bool {
    std::env::var_os(ROLE).is_some()
}
