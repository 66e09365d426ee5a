//! A relay beside the device's networks, a device that joined it, and an origin beyond that sees who comes.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use multiway_api::EventDetail;
use multiway_linksim::{LinkSpec, Scenario, ServerSpec, mbit};
use multiway_netlab::{Direction, DnsAnswer, DnsServer, Host, NetworkOptions, Process, Server};

use crate::support::{PATIENCE, World, content_of, multiway, output, wait_until, wifi_and_lte};

/// A socket that is silent for longer has stalled.
const SOCKET_PATIENCE: Duration = Duration::from_secs(30);

/// The relay's port.
pub(crate) const RELAY_PORT: u16 = 443;

/// Where the relay offers its metrics, on its own loopback.
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Where the origin says who came.
pub(crate) const WHO_PORT: u16 = 7000;

/// Where the origin exchanges bytes.
pub(crate) const EXCHANGE_PORT: u16 = 7001;

/// The device with Wi-Fi and LTE, the origin `files.example`, and a relay `relay.example` on another host.
pub(crate) fn scenario(origin: ServerSpec) -> Scenario {
    let uplink = LinkSpec::symmetric(mbit(500), Duration::from_millis(1));
    wifi_and_lte(origin).server(ServerSpec::new("relay").known_as("relay.example").behind(uplink))
}

/// A world with a relay that works, and an origin.
pub(crate) struct BondWorld {
    pub(crate) world: World,
    pub(crate) relay: Relay,
    pub(crate) origin: Origin,
}

impl BondWorld {
    /// One whose device has joined, and whose flows go through the relay.
    pub(crate) fn joined() -> Result<Self> {
        Self::joined_with(scenario(ServerSpec::new("origin")), |_| Ok(NetworkOptions::default()), "")
    }

    /// The same with more in the relay's configuration.
    pub(crate) fn joined_with(
        scenario: Scenario,
        options: impl FnOnce(&Path) -> Result<NetworkOptions>,
        relay_config: &str,
    ) -> Result<Self> {
        let mut bond = Self::build_with(scenario, options, relay_config)?;
        let invite = bond.relay.invite(&[])?;
        bond.join(&invite)?;
        bond.start_daemon()?;
        Ok(bond)
    }

    /// One whose device has not joined.
    pub(crate) fn build(relay_config: &str) -> Result<Self> {
        let scenario = scenario(ServerSpec::new("origin"));
        Self::build_with(scenario, |_| Ok(NetworkOptions::default()), relay_config)
    }

    /// The same with another scenario, options, and more in the relay's configuration.
    pub(crate) fn build_with(
        scenario: Scenario,
        options: impl FnOnce(&Path) -> Result<NetworkOptions>,
        relay_config: &str,
    ) -> Result<Self> {
        let world = World::build_with(&scenario, options)?;
        let origin = Origin::start(world.network.server("origin"))?;
        let relay = Relay::start(&world, "relay", relay_config)?;
        Ok(Self { world, relay, origin })
    }

    /// `multiway join`
    pub(crate) fn join(&self, invite: &str) -> Result<()> {
        output(&mut self.world.multiway(&["join", invite])).map(drop)
    }

    /// `multiway up`, until flows go through the relay.
    pub(crate) fn start_daemon(&mut self) -> Result<()> {
        self.world.start_daemon("", &[])?;
        self.wait_until_bonded()
    }

    /// Waits until flows go through the relay.
    pub(crate) fn wait_until_bonded(&self) -> Result<()> {
        wait_until("flows through the relay", || self.who().is_ok_and(|who| self.relay.is(who)))
            .with_context(|| format!("{}\n{}", self.world.daemon_log(), self.relay.log()))
    }

    /// Who the origin says comes to it from the device.
    pub(crate) fn who(&self) -> Result<IpAddr> {
        read_who(self.socks("files.example", WHO_PORT)?)
    }

    /// Waits until the daemon says why flows go without the relay, and fails if they go through it.
    pub(crate) fn wait_until_fallen_back(&self, because: &str) -> Result<()> {
        let fell_back = || -> Result<bool> {
            let events = self.world.status()?.events;
            let last = events.iter().rev().find_map(|event| match &event.detail {
                EventDetail::FellBack { reason, .. } => Some(reason.contains(because)),
                _ => None,
            });
            Ok(last == Some(true))
        };
        wait_until(because, || fell_back().unwrap_or(false)).with_context(|| self.world.daemon_log())?;
        let who = self.who()?;
        ensure!(!self.relay.is(who), "a flow went through the relay although {because}");
        Ok(())
    }

    /// A connection by the daemon's SOCKS5.
    pub(crate) fn socks(&self, host: &str, port: u16) -> Result<TcpStream> {
        match self.try_socks(host, port)? {
            Ok(stream) => Ok(stream),
            Err(reply) => bail!("SOCKS answers {reply} for {host}:{port}"),
        }
    }

    /// The same, or the reply of RFC 1928 section 6 that says why not.
    pub(crate) fn try_socks(&self, host: &str, port: u16) -> Result<Result<TcpStream, u8>> {
        self.socks_by(self.world.proxy()?.parse()?, host, port)
    }

    /// The same by another daemon's proxy.
    pub(crate) fn socks_by(&self, proxy: SocketAddr, host: &str, port: u16) -> Result<Result<TcpStream, u8>> {
        const SUCCEEDED: u8 = 0;
        let mut stream = connect(self.world.network.device(), proxy)?;
        let mut request = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len())?];
        request.extend_from_slice(host.as_bytes());
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request)?;
        let mut head = [0; 2 + 4];
        stream.read_exact(&mut head)?;
        // The address that follows is that of the proxy's own connection.
        let mut bound = vec![0; if head[5] == 4 { 16 + 2 } else { 4 + 2 }];
        stream.read_exact(&mut bound)?;
        Ok(if head[3] == SUCCEEDED { Ok(stream) } else { Err(head[3]) })
    }

    /// What went up a path's link, in packets.
    pub(crate) fn packets_up(&self, interface: &str) -> u64 {
        self.world.network.path(interface).link().counters(Direction::Up).offered.packets
    }
}

/// A running `multiway relay`.
pub(crate) struct Relay {
    process: Option<Process>,
    host: Host,
    addresses: [IpAddr; 4],
    address: SocketAddr,
    directory: PathBuf,
    /// Answers its name lookups.
    pub(crate) dns: DnsServer,
}

impl Relay {
    /// Starts one on this server, with more in its configuration.
    pub(crate) fn start(world: &World, server: &str, config: &str) -> Result<Self> {
        let mut relay = Self::prepare(world, server, config)?;
        relay.run()?;
        Ok(relay)
    }

    /// One that does not run yet.
    pub(crate) fn prepare(world: &World, server: &str, config: &str) -> Result<Self> {
        let directory = world.path(server);
        fs::create_dir(&directory)?;
        let server = world.network.server(server);
        let host = server.host().clone();
        let dns = DnsServer::start(&host, &[Ipv4Addr::LOCALHOST.into()])?;
        let origin = world.network.server("origin");
        let known = vec![origin.public_address().into(), origin.public_address_v6().into()];
        dns.set("files.example", DnsAnswer::Addresses(known));
        host.set_resolv_conf("nameserver 127.0.0.1\n")?;
        let address = SocketAddr::new(server.public_address().into(), RELAY_PORT);
        let addresses = server.addresses();
        let relay = Self { process: None, host, addresses, address, directory, dns };
        relay.configure(config)?;
        Ok(relay)
    }

    /// Writes its configuration, for its next start.
    pub(crate) fn configure(&self, config: &str) -> Result<()> {
        let Self { address, .. } = self;
        let config = format!("address = \"{address}\"\nmetrics = \"{METRICS}\"\n{config}");
        Ok(fs::write(self.directory.join("relay.toml"), config)?)
    }

    /// Starts it, again if it ran before.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.run_under(&[])
    }

    /// The same under another program, given with its arguments.
    pub(crate) fn run_under(&mut self, wrapper: &[&str]) -> Result<()> {
        let log = fs::File::options().create(true).append(true).open(self.directory.join("log"))?;
        let mut command = match wrapper.split_first() {
            None => self.host.command(multiway()),
            Some((program, arguments)) => {
                let mut command = self.host.command(program);
                command.args(arguments).arg(multiway());
                command
            }
        };
        command.args(["relay", "-c", "relay.toml", "--state", "state"]).current_dir(&self.directory);
        command.env("MULTIWAY_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(self.host.start(command)?);
        let listens = self.host.wait_for_port(self.address, PATIENCE);
        listens.with_context(|| format!("the relay does not listen:\n{}", self.log()))
    }

    /// `multiway relay ...` on its state, for people; on its host.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(multiway());
        command.args(["relay", "-c", "relay.toml", "--state", "state"]).args(arguments);
        command.current_dir(&self.directory).env_remove("MULTIWAY_LOG");
        command
    }

    /// `multiway relay invite`
    pub(crate) fn invite(&self, arguments: &[&str]) -> Result<String> {
        let printed = output(self.command(&["invite", "-q"]).args(arguments))?;
        Ok(String::from_utf8(printed)?.trim().to_owned())
    }

    /// Whether an address is one of its host's.
    pub(crate) fn is(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Its host.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Where devices connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the test started it")
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the test started it")?;
        process.child().kill()?;
        process.child().wait()?;
        Ok(())
    }

    /// A file of its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// One of its metrics, by its name behind `multiway_relay_`.
    pub(crate) fn metric(&self, name: &str) -> Result<u64> {
        let text = self.host.run(|| -> io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&METRICS, PATIENCE)?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        })?;
        let line = format!("\nmultiway_relay_{name} ");
        let (_, value) = text.split_once(&line).with_context(|| format!("no {name} in {text}"))?;
        Ok(value.lines().next().unwrap_or_default().parse()?)
    }
}

/// Reads what the origin says of who came.
pub(crate) fn read_who(mut stream: TcpStream) -> Result<IpAddr> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.parse()?)
}

/// A connection from a host on which nothing waits for ever.
pub(crate) fn connect(host: &Host, address: SocketAddr) -> Result<TcpStream> {
    let stream = host.run(|| TcpStream::connect_timeout(&address, SOCKET_PATIENCE));
    let stream = stream.with_context(|| format!("no connection to {address}"))?;
    stream.set_read_timeout(Some(SOCKET_PATIENCE))?;
    stream.set_write_timeout(Some(SOCKET_PATIENCE))?;
    Ok(stream)
}

/// What an exchange came to at the origin's end: who came, and what was wrong.
pub(crate) type Verdict = (IpAddr, Result<(), String>);

/// Beyond the relay: says who came, and exchanges bytes with halves closed one after the other.
pub(crate) struct Origin {
    verdicts: Arc<Mutex<Vec<Verdict>>>,
}

impl Origin {
    fn start(server: &Server) -> Result<Self> {
        let verdicts = Arc::new(Mutex::new(Vec::new()));
        for address in server.addresses() {
            serve(server.host(), (address, WHO_PORT).into(), |mut stream, peer| write!(stream, "{peer}"))?;
            let verdicts = Arc::clone(&verdicts);
            serve(server.host(), (address, EXCHANGE_PORT).into(), move |stream, peer| {
                let verdict = answer_exchange(&stream).map_err(|error| format!("{error:#}"));
                verdicts.lock().unwrap_or_else(PoisonError::into_inner).push((peer, verdict));
                Ok(())
            })?;
        }
        Ok(Self { verdicts })
    }

    /// What all exchanges came to, in the order in which they ended.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves each connection in a thread of its own, until the test's process ends.
pub(crate) fn serve(
    host: &Host,
    address: SocketAddr,
    work: impl Fn(TcpStream, IpAddr) -> io::Result<()> + Send + Sync + 'static,
) -> Result<()> {
    let listener = host.run(|| TcpListener::bind(address)).with_context(|| address.to_string())?;
    let work = Arc::new(work);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let work = Arc::clone(&work);
            std::thread::spawn(move || {
                // Clients that go away end their connection's thread.
                if let Ok(peer) = stream.peer_addr() {
                    let _ = work(stream, peer.ip());
                }
            });
        }
    });
    Ok(())
}

/// Which end closes its half first; the other one keeps half of its bytes until it saw that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    DeviceFirst,
    OriginFirst,
}

/// Bytes to exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) ends: Ends,
    pub(crate) up: u64,
    pub(crate) down: u64,
}

impl Exchange {
    /// Says to the origin what is to come.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = vec![u8::from(self.ends == Ends::OriginFirst)];
        header.extend(self.up.to_be_bytes());
        header.extend(self.down.to_be_bytes());
        header
    }

    /// The device's random bytes.
    pub(crate) fn up_bytes(&self) -> Vec<u8> {
        content_of(1, "up", self.up)
    }

    /// The origin's random bytes.
    pub(crate) fn down_bytes(&self) -> Vec<u8> {
        content_of(1, "down", self.down)
    }

    /// The device's end of it.
    pub(crate) fn perform(&self, stream: &TcpStream) -> Result<()> {
        (&*stream).write_all(&self.header())?;
        let ends_first = self.ends == Ends::DeviceFirst;
        exchange(stream, &self.up_bytes(), &self.down_bytes(), ends_first)
    }
}

fn answer_exchange(mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(SOCKET_PATIENCE))?;
    stream.set_write_timeout(Some(SOCKET_PATIENCE))?;
    let mut header = [0; 1 + 8 + 8];
    stream.read_exact(&mut header)?;
    let number =
        |at: usize| header[at..at + 8].iter().fold(0_u64, |number, &octet| number << 8 | u64::from(octet));
    let ends = if header[0] == 1 { Ends::OriginFirst } else { Ends::DeviceFirst };
    let plan = Exchange { ends, up: number(1), down: number(9) };
    exchange(stream, &plan.down_bytes(), &plan.up_bytes(), ends == Ends::OriginFirst)
}

/// Sends and receives at once; both must end in good order, and what comes must be right.
fn exchange(stream: &TcpStream, sends: &[u8], expects: &[u8], ends_first: bool) -> Result<()> {
    let (mut reader, mut writer) = (stream, stream);
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).with_context(|| format!("after {} bytes", received.len()))?;
            crate::support::same(&received, expects)
        });
        let join = |received: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            received.join().expect("reading does not panic").context("while receiving")
        };
        let (at_once, later) = sends.split_at(if ends_first { sends.len() } else { sends.len() / 2 });
        writer.write_all(at_once).context("while sending")?;
        if ends_first {
            stream.shutdown(Shutdown::Write)?;
            return join(received);
        }
        join(received)?;
        writer.write_all(later).context("while sending the second half")?;
        Ok(stream.shutdown(Shutdown::Write)?)
    })
}

/// Fails unless the last `count` exchanges came from the relay and were right at the origin too.
pub(crate) fn origin_is_content(bond: &BondWorld, count: usize) -> Result<()> {
    wait_until("the origin's verdict", || bond.origin.verdicts().len() >= count)?;
    let verdicts = bond.origin.verdicts();
    for (peer, verdict) in &verdicts {
        ensure!(bond.relay.is(*peer), "{peer} is not the relay: {verdicts:?}");
        ensure!(verdict.is_ok(), "at the origin: {verdicts:?}");
    }
    Ok(())
}
