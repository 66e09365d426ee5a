//! MultiMob's interactive traffic (section IV, paragraph a, figure 2) as a program of its own, so that it
//! runs like any other on hosts of the lab.
//!
//! Someone speaks to a device: nine bursts of 2500 bytes, one every third of a second, each answered by
//! 750 bytes. Then comes a pause of 5 s, and all of it again.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use crate::output;
use crate::reader::{MPTCP, open_tunnel};
use crate::sessions;
use crate::webradio;

/// Bursts between two pauses.
const BURSTS: u32 = 9;

const BURST_BYTES: usize = 2500;

/// A burst's packets carry from so much to so much.
const PACKET_BYTES: std::ops::RangeInclusive<usize> = 50..=500;

const ANSWER_BYTES: usize = 750;

const BETWEEN_BURSTS: Duration = Duration::from_nanos(1_000_000_000 / 3);

/// Inter-user interaction wait.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// From one round to the next: its bursts and the pause.
pub(crate) const ROUND_LENGTH: Duration = Duration::from_secs(8);

const BACKLOG: i32 = 128;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// Answers
    Serve {
        listen: SocketAddr,
        /// A question has so many bytes
        #[arg(long, value_name = "BYTES", default_value_t = BURST_BYTES)]
        question: usize,
        /// Speak Multipath TCP
        #[arg(long)]
        mptcp: bool,
    },
    /// Plays a radio to everyone who connects
    Radio {
        listen: SocketAddr,
        /// Speak Multipath TCP
        #[arg(long)]
        mptcp: bool,
    },
    /// Holds sessions with a relay, until its input ends
    Sessions(sessions::Options),
    /// Asks, and writes a line of JSON when it pauses and one at its end
    Ask {
        server: SocketAddr,
        /// Speak Multipath TCP
        #[arg(long)]
        mptcp: bool,
        /// Connect through this HTTP proxy
        #[arg(long, value_name = "ADDRESS")]
        proxy: Option<SocketAddr>,
        /// Ask in one piece of so many bytes, not in a burst of small ones
        #[arg(long, value_name = "BYTES")]
        question: Option<usize>,
        /// So many times nine bursts
        #[arg(long, default_value = "2")]
        rounds: u32,
        /// Decides the sizes of packets
        #[arg(long, default_value = "1")]
        seed: u64,
        /// Wait so long for the last answers
        #[arg(long, value_name = "SECONDS", default_value = "20")]
        patience: u64,
    },
}

/// What the asking side writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Line {
    /// A round is over; the next one begins after the pause.
    Pause,
    /// All is over.
    End(Answers),
}

/// How long each answer took.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Answers {
    /// From the first byte of a burst to the last of its answer, in order.
    pub(crate) delays_ms: Vec<f64>,
    /// Bursts without an answer.
    pub(crate) missing: u32,
    /// What ended the connection early, if anything did.
    pub(crate) error: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.side {
        Side::Serve { listen, question, mptcp } => {
            let question = *question;
            serve(*listen, *mptcp, move |stream| answer(stream, question))
        }
        Side::Radio { listen, mptcp } => serve(*listen, *mptcp, webradio::play),
        Side::Sessions(options) => sessions::run(options),
        Side::Ask { server, mptcp, proxy, question, rounds, seed, patience } => {
            let stream = connect(*server, *mptcp, *proxy)?;
            let questions = question.map_or(Questions::Bursts(Sizes(*seed)), Questions::Whole);
            let answers = ask(stream, *rounds, questions, Duration::from_secs(*patience), &mut |line| {
                output::line(&serde_json::to_string(line)?).map_err(Into::into)
            })?;
            Ok(output::line(&serde_json::to_string(&Line::End(answers))?)?)
        }
    }
}

fn socket(address: SocketAddr, mptcp: bool) -> Result<Socket> {
    let protocol = if mptcp { Protocol::from(MPTCP) } else { Protocol::TCP };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))
        .context("cannot make a socket")?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

fn serve(
    listen: SocketAddr,
    mptcp: bool,
    attend: impl Fn(TcpStream) -> io::Result<()> + Copy + Send + 'static,
) -> Result<()> {
    let socket = socket(listen, mptcp)?;
    socket.set_reuse_address(true)?;
    socket.bind(&listen.into()).with_context(|| format!("cannot listen on {listen}"))?;
    socket.listen(BACKLOG)?;
    let listener: TcpListener = socket.into();
    for stream in listener.incoming() {
        let stream = stream?;
        // Whoever connects may go at any time.
        std::thread::spawn(move || attend(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, question: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = vec![0; question];
    loop {
        stream.read_exact(&mut bytes)?;
        stream.write_all(&[1; ANSWER_BYTES])?;
    }
}

pub(crate) fn connect(server: SocketAddr, mptcp: bool, proxy: Option<SocketAddr>) -> Result<TcpStream> {
    let to = proxy.unwrap_or(server);
    let socket = socket(to, mptcp)?;
    socket.connect(&to.into()).with_context(|| format!("cannot connect to {to}"))?;
    let stream: TcpStream = socket.into();
    if proxy.is_some() {
        open_tunnel(&stream, server)?;
    }
    Ok(stream)
}

/// Asks all, and gives how long each answer took.
fn ask(
    stream: TcpStream,
    rounds: u32,
    mut questions: Questions,
    patience: Duration,
    tell: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<Answers> {
    let count = (rounds * BURSTS) as usize;
    let (answered, arrivals) = mpsc::channel();
    let mut reading = stream.try_clone()?;
    std::thread::spawn(move || {
        let mut answer = [0; ANSWER_BYTES];
        for _ in 0..count {
            let arrival = reading.read_exact(&mut answer).map(|()| Instant::now());
            let is_over = arrival.is_err();
            if answered.send(arrival).is_err() || is_over {
                return;
            }
        }
    });
    let mut sent = Vec::new();
    let mut error = None;
    'all: for round in 0..rounds {
        if round > 0 {
            tell(&Line::Pause)?;
            std::thread::sleep(PAUSE);
        }
        let mut next = Instant::now();
        for _ in 0..BURSTS {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            next += BETWEEN_BURSTS;
            sent.push(Instant::now());
            if let Err(failure) = questions.ask(&stream) {
                error = Some(failure.to_string());
                break 'all;
            }
        }
    }
    let deadline = Instant::now() + patience;
    let mut delays_ms = Vec::new();
    for start in sent {
        let wait = deadline.saturating_duration_since(Instant::now());
        match arrivals.recv_timeout(wait) {
            Ok(Ok(arrival)) => delays_ms.push((arrival - start).as_secs_f64() * 1e3),
            Ok(Err(failure)) => {
                error.get_or_insert(failure.to_string());
                break;
            }
            Err(_) => break,
        }
    }
    let missing = u32::try_from(count - delays_ms.len()).context("too many bursts")?;
    Ok(Answers { delays_ms, missing, error })
}

/// Asks without any pause for so long, and collects in `delays` how long each answer took; gives how many
/// did not come within `patience`.
pub(crate) fn ask_for(
    stream: &TcpStream,
    length: Duration,
    patience: Duration,
    delays: &Mutex<Vec<Duration>>,
) -> io::Result<u32> {
    stream.set_read_timeout(Some(patience))?;
    let (asked, questions) = mpsc::channel::<Instant>();
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let (mut reading, mut answer, mut missing) = (stream, [0; ANSWER_BYTES], 0);
            for start in questions {
                // Answers are told apart by their order alone.
                if missing > 0 || reading.read_exact(&mut answer).is_err() {
                    missing += 1;
                } else {
                    delays.lock().expect("nothing panics while it holds this").push(start.elapsed());
                }
            }
            missing
        });
        let mut questions = Questions::Bursts(Sizes(1));
        let start = Instant::now();
        let mut next = start;
        while next < start + length {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            next += BETWEEN_BURSTS;
            // A connection that broke answers nothing: the reading side counts that.
            if asked.send(Instant::now()).is_err() || questions.ask(stream).is_err() {
                break;
            }
        }
        drop(asked);
        Ok(reading.join().expect("it does not panic"))
    })
}

/// How a question is asked.
enum Questions {
    /// In packets of these sizes.
    Bursts(Sizes),
    /// In one piece of so many bytes.
    Whole(usize),
}

impl Questions {
    fn ask(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        match self {
            Self::Bursts(sizes) => {
                let mut left = BURST_BYTES;
                while left > 0 {
                    let size = sizes.next().min(left);
                    stream.write_all(&[2; 500][..size])?;
                    left -= size;
                }
                Ok(())
            }
            Self::Whole(bytes) => stream.write_all(&vec![2; *bytes]),
        }
    }
}

/// Sizes of packets, the same for the same seed.
struct Sizes(u64);

impl Sizes {
    fn next(&mut self) -> usize {
        // Knuth's linear congruential generator (MMIX), of which the upper bits are good.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let span = PACKET_BYTES.end() - PACKET_BYTES.start() + 1;
        PACKET_BYTES.start() + (self.0 >> 33) as usize % span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(question: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| drop(answer(stream, question)));
        });
        address
    }

    #[test]
    fn every_burst_of_a_round_is_answered() {
        let stream = connect(server(BURST_BYTES), false, None).expect("it listens");
        let answers = ask(stream, 1, Questions::Bursts(Sizes(7)), Duration::from_secs(30), &mut |_| Ok(()))
            .expect("a round");
        assert_eq!((answers.delays_ms.len(), answers.missing, answers.error), (9, 0, None));
    }

    #[test]
    fn a_question_in_one_piece_is_answered() {
        let stream = connect(server(12_000), false, None).expect("it listens");
        let answers = ask(stream, 1, Questions::Whole(12_000), Duration::from_secs(30), &mut |_| Ok(()));
        assert_eq!(answers.expect("a round").missing, 0);
    }

    #[test]
    fn answers_that_do_not_come_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let stream = connect(listener.local_addr().expect("an address"), false, None).expect("it listens");
        let answers =
            ask(stream, 1, Questions::Whole(7), Duration::from_millis(1), &mut |_| Ok(())).expect("a round");
        assert_eq!((answers.delays_ms.len(), answers.missing), (0, 9));
    }

    #[test]
    fn every_question_without_a_pause_is_answered() {
        let stream = connect(server(BURST_BYTES), false, None).expect("it listens");
        let delays = Mutex::default();
        let missing = ask_for(&stream, BETWEEN_BURSTS * 2, Duration::from_secs(30), &delays);
        assert_eq!((missing.expect("asked"), delays.into_inner().expect("unpoisoned").len()), (0, 2));
    }

    #[test]
    fn packets_carry_what_the_paper_says() {
        let mut sizes = Sizes(1);
        assert!((0..1000).all(|_| PACKET_BYTES.contains(&sizes.next())));
    }

    #[test]
    fn lines_are_read_back() {
        let end = Line::End(Answers { delays_ms: vec![19.5], missing: 1, error: None });
        for line in [Line::Pause, end] {
            let text = serde_json::to_string(&line).expect("plain values");
            assert_eq!(serde_json::from_str::<Line>(&text).expect("read back"), line);
        }
    }
}
