//! A DNS server for a lab: answers from a table that may be changed while it runs, over UDP and TCP,
//! and misbehaves where it is told to.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use hickory_proto::op::{Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::host::Host;

/// A chain of more aliases is a loop in the table.
const LONGEST_ALIAS_CHAIN: usize = 16;

/// A TCP client that says nothing for so long is left.
const TCP_PATIENCE: Duration = Duration::from_secs(10);

/// How long clients may keep an answer, unless told otherwise.
const DEFAULT_TTL_SECONDS: u32 = 60;

/// Room for the largest UDP message.
const UDP_BUFFER_BYTES: usize = 65_536;

/// What a name is answered with. A name that is not in the table does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsAnswer {
    /// These addresses, each to the query for its family.
    Addresses(Vec<IpAddr>),
    /// The name is another name's alias, which the table may know.
    Alias(String),
    /// Addresses, but over UDP only the remark that the answer was cut off.
    OnlyOverTcp(Vec<IpAddr>),
    /// There is no such name.
    NoSuchName,
    /// The server failed.
    ServerFailure,
    /// No answer at all.
    Silence,
}

/// A query that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsQuery {
    /// The name, in lower case and without the last dot.
    pub name: String,
    /// For instance `A` or `AAAA`.
    pub record_type: String,
    /// Who asked.
    pub client: SocketAddr,
    /// Whether over TCP.
    pub is_tcp: bool,
}

#[derive(Default)]
struct Zone {
    answers: HashMap<String, (u32, DnsAnswer)>,
    queries: Vec<DnsQuery>,
}

/// A running DNS server; stopped when dropped.
pub struct DnsServer {
    zone: Arc<Mutex<Zone>>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl DnsServer {
    /// Starts one on a host, at port 53 of these addresses, knowing no name.
    pub fn start(host: &Host, addresses: &[IpAddr]) -> Result<Self> {
        let bind = || -> io::Result<Vec<(UdpSocket, TcpListener)>> {
            addresses
                .iter()
                .map(|&address| {
                    let (udp, tcp) = (UdpSocket::bind((address, 53))?, TcpListener::bind((address, 53))?);
                    udp.set_nonblocking(true)?;
                    tcp.set_nonblocking(true)?;
                    Ok((udp, tcp))
                })
                .collect()
        };
        let sockets =
            host.run(bind).with_context(|| format!("cannot start a DNS server on {}", host.name()))?;
        let zone: Arc<Mutex<Zone>> = Arc::default();
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).context("cannot make an eventfd")?);
        let thread = std::thread::Builder::new()
            .name(format!("dns {}", host.name()))
            .spawn({
                let (zone, stop) = (Arc::clone(&zone), Arc::clone(&stop));
                move || serve(&sockets, &zone, &stop)
            })
            .context("cannot start a thread")?;
        Ok(Self { zone, stop, thread: Some(thread) })
    }

    /// Answers a name like this from now on.
    pub fn set(&self, name: &str, answer: DnsAnswer) {
        self.set_with_ttl(name, DEFAULT_TTL_SECONDS, answer);
    }

    /// The same with a time to live.
    pub fn set_with_ttl(&self, name: &str, ttl_seconds: u32, answer: DnsAnswer) {
        lock(&self.zone).answers.insert(key(name), (ttl_seconds, answer));
    }

    /// All queries so far.
    pub fn queries(&self) -> Vec<DnsQuery> {
        lock(&self.zone).queries.clone()
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        // It cannot fail: the counter is far from full.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported on standard error.
            let _ = thread.join();
        }
    }
}

fn lock(zone: &Mutex<Zone>) -> MutexGuard<'_, Zone> {
    zone.lock().expect("no thread panics while it holds the zone")
}

fn key(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn serve(sockets: &[(UdpSocket, TcpListener)], zone: &Arc<Mutex<Zone>>, stop: &EventFd) {
    loop {
        let mut sources: Vec<PollFd<'_>> = sockets
            .iter()
            .flat_map(|(udp, tcp)| [udp.as_fd(), tcp.as_fd()])
            .chain([stop.as_fd()])
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut sources, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => unreachable!("poll on open descriptors failed: {error}"),
        }
        if sources.last().is_some_and(|stop| stop.any().unwrap_or(false)) {
            return;
        }
        for (udp, tcp) in sockets {
            serve_udp(udp, zone);
            while let Ok((stream, client)) = tcp.accept() {
                let zone = Arc::clone(zone);
                std::thread::spawn(move || serve_tcp(stream, client, &zone));
            }
        }
    }
}

fn serve_udp(udp: &UdpSocket, zone: &Mutex<Zone>) {
    let mut buffer = vec![0; UDP_BUFFER_BYTES];
    loop {
        match udp.recv_from(&mut buffer) {
            Ok((length, client)) => {
                if let Some(response) = respond(&buffer[..length], client, false, zone) {
                    // Lost answers are the client's to ask for again.
                    let _ = udp.send_to(&response, client);
                }
            }
            // An ICMP error about an earlier answer.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}

/// Messages over TCP carry their length in two bytes (RFC 1035, 4.2.2); clients may ask several times.
fn serve_tcp(mut stream: TcpStream, client: SocketAddr, zone: &Mutex<Zone>) {
    let mut serve = || -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TCP_PATIENCE))?;
        loop {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let mut query = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut query)?;
            if let Some(response) = respond(&query, client, true, zone) {
                let length = u16::try_from(response.len()).map_err(io::Error::other)?;
                stream.write_all(&[&length.to_be_bytes()[..], &response].concat())?;
            }
        }
    };
    // It ends when the client leaves.
    let _ = serve();
}

/// The answer to a message, none for one that cannot be read or is to be met with silence.
fn respond(message: &[u8], client: SocketAddr, is_tcp: bool, zone: &Mutex<Zone>) -> Option<Vec<u8>> {
    let request = Message::from_vec(message).ok()?;
    let query = request.queries.first()?;
    let mut zone = lock(zone);
    zone.queries.push(DnsQuery {
        name: key(&query.name().to_ascii()),
        record_type: query.query_type().to_string(),
        client,
        is_tcp,
    });
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata = Metadata::response_from_request(&request.metadata);
    response.metadata.recursion_available = true;
    response.add_query(query.clone());
    zone.answer(query, is_tcp, &mut response)?;
    response.to_vec().ok()
}

impl Zone {
    /// Writes the answer into `response`; none when there is to be silence.
    fn answer(&self, query: &Query, is_tcp: bool, response: &mut Message) -> Option<()> {
        let mut name = query.name().clone();
        for _ in 0..LONGEST_ALIAS_CHAIN {
            let Some((ttl, answer)) = self.answers.get(&key(&name.to_ascii())) else {
                response.metadata.response_code = ResponseCode::NXDomain;
                return Some(());
            };
            match answer {
                DnsAnswer::Alias(target) => {
                    let Ok(target) = Name::from_ascii(format!("{}.", key(target))) else { break };
                    let record = Record::from_rdata(name, *ttl, RData::CNAME(CNAME(target.clone())));
                    response.add_answer(record);
                    name = target;
                }
                DnsAnswer::OnlyOverTcp(_) if !is_tcp => {
                    response.answers.clear();
                    response.metadata.truncation = true;
                    return Some(());
                }
                DnsAnswer::Addresses(addresses) | DnsAnswer::OnlyOverTcp(addresses) => {
                    for address in addresses {
                        let (record_type, data) = match *address {
                            IpAddr::V4(address) => (RecordType::A, RData::A(A(address))),
                            IpAddr::V6(address) => (RecordType::AAAA, RData::AAAA(AAAA(address))),
                        };
                        if record_type == query.query_type() {
                            response.add_answer(Record::from_rdata(name.clone(), *ttl, data));
                        }
                    }
                    return Some(());
                }
                DnsAnswer::NoSuchName => {
                    response.metadata.response_code = ResponseCode::NXDomain;
                    return Some(());
                }
                DnsAnswer::ServerFailure => break,
                DnsAnswer::Silence => return None,
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        Some(())
    }
}
