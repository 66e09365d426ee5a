//! A relay's configuration file: read once, checked completely, errors named by line and column.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::destinations::{Destinations, Network};
use crate::bond::invite::RelayAddress;
use crate::config::{ConfigError, Fault, fault};

/// Where a relay listens unless configured otherwise: every address, the port that every network
/// lets through.
pub const DEFAULT_LISTEN: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 443),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 443),
];

/// Everything a relay can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// Where devices connect.
    pub listen: Vec<SocketAddr>,
    /// The address that invites name.
    pub address: Option<RelayAddress>,
    /// The address that joins are to use, when `address` leads to several relays.
    pub advertise: Option<RelayAddress>,
    /// Where keys, users and usage are kept; the starter chooses when absent.
    pub state: Option<PathBuf>,
    /// Where metrics are offered to Prometheus; nowhere when absent.
    pub metrics: Option<SocketAddr>,
    /// Whether the log is one JSON object per line.
    pub json_log: bool,
    /// How long streams may go on after the relay was told to stop.
    pub drain: Duration,
    /// How long a session without any subflow is kept.
    pub session_linger: Duration,
    /// Where streams may lead.
    pub destinations: Destinations,
    /// Bounds on what devices may take.
    pub limits: RelayLimits,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.to_vec(),
            address: None,
            advertise: None,
            state: None,
            metrics: None,
            json_log: false,
            drain: Duration::from_secs(30),
            // As long as a device may be in a tunnel; a session without streams costs some KiB.
            session_linger: Duration::from_secs(300),
            destinations: Destinations::default(),
            limits: RelayLimits::default(),
        }
    }
}

/// Bounds on what devices may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Sessions in all.
    pub sessions: usize,
    /// Sessions of one user.
    pub sessions_per_user: usize,
    /// Subflows of one session.
    pub subflows_per_session: usize,
    /// Streams of one session that are open at once.
    pub streams_per_session: usize,
    /// Bytes held for one stream and direction.
    pub stream_bytes: u64,
    /// Bytes held for one session and direction, besides 64 KiB of each stream.
    pub session_bytes: u64,
    /// TLS handshakes per second in all.
    pub handshakes_per_second: u32,
    /// TLS handshakes per second from one address (IPv6: from one /64).
    pub handshakes_per_second_per_address: u32,
    /// How long a handshake, the first message included, may take.
    pub handshake: Duration,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            sessions: 20_000,
            sessions_per_user: 16,
            subflows_per_session: 8,
            streams_per_session: 1024,
            // 400 Mbit/s at 80 ms fill 4 MB.
            stream_bytes: 4 << 20,
            session_bytes: 16 << 20,
            // A full handshake costs some 0.2 ms of one core.
            handshakes_per_second: 1000,
            handshakes_per_second_per_address: 50,
            // Four retransmissions of a SYN fit in.
            handshake: Duration::from_secs(15),
        }
    }
}

impl RelayConfig {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| ConfigError::Unreadable { file: file.to_owned(), error })?;
        parse(&text).map_err(|fault| ConfigError::Invalid { file: file.to_owned(), text, fault })
    }
}

/// Where a relay keeps its state unless configured otherwise.
pub fn default_state() -> Option<PathBuf> {
    // Beside the history of measurements of a daemon on the same machine.
    crate::paths::default_history_file()
        .and_then(|history| Some(history.parent()?.with_file_name("multiway-relay")))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<Vec<SocketAddr>>,
    address: Option<Spanned<String>>,
    advertise: Option<Spanned<String>>,
    state: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    log: LogForm,
    drain_seconds: Option<u64>,
    session_linger_seconds: Option<u64>,
    destinations: Lists,
    limits: Limits,
}

#[derive(Deserialize, Default, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum LogForm {
    #[default]
    Text,
    Json,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Lists {
    allow: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    deny_ports: Option<Vec<u16>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    sessions: Option<Spanned<u32>>,
    sessions_per_user: Option<Spanned<u32>>,
    subflows_per_session: Option<Spanned<u32>>,
    streams_per_session: Option<Spanned<u32>>,
    stream_kib: Option<Spanned<u32>>,
    session_kib: Option<Spanned<u32>>,
    handshakes_per_second: Option<Spanned<u32>>,
    handshakes_per_second_per_address: Option<Spanned<u32>>,
    handshake_seconds: Option<Spanned<u32>>,
}

type SpannedFault = (Range<usize>, String);

/// Reads a configuration text and checks it completely.
pub fn parse(text: &str) -> Result<RelayConfig, Fault> {
    let file: File = toml::from_str(text)
        .map_err(|error| fault(text, error.span().unwrap_or(0..0), error.message().to_owned()))?;
    file.check().map_err(|(span, message)| fault(text, span, message))
}

impl File {
    fn check(self) -> Result<RelayConfig, SpannedFault> {
        let default = RelayConfig::default();
        let address = |given: Option<Spanned<String>>| {
            let parse = |text: Spanned<String>| {
                text.get_ref().parse::<RelayAddress>().map_err(|error| (text.span(), error.to_string()))
            };
            given.map(parse).transpose()
        };
        let networks = |list: &[Spanned<String>]| -> Result<Vec<Network>, SpannedFault> {
            let parse = |text: &Spanned<String>| {
                text.get_ref().parse::<Network>().map_err(|error| (text.span(), error.to_string()))
            };
            list.iter().map(parse).collect()
        };
        let seconds = |given: Option<u64>, default| given.map_or(default, Duration::from_secs);
        Ok(RelayConfig {
            listen: self.listen.unwrap_or(default.listen),
            address: address(self.address)?,
            advertise: address(self.advertise)?,
            state: self.state,
            metrics: self.metrics,
            json_log: self.log == LogForm::Json,
            drain: seconds(self.drain_seconds, default.drain),
            session_linger: seconds(self.session_linger_seconds, default.session_linger),
            destinations: Destinations {
                allow: networks(&self.destinations.allow)?,
                deny: networks(&self.destinations.deny)?,
                deny_ports: self.destinations.deny_ports.unwrap_or(default.destinations.deny_ports),
            },
            limits: self.limits.check()?,
        })
    }
}

impl Limits {
    fn check(&self) -> Result<RelayLimits, SpannedFault> {
        let default = RelayLimits::default();
        let limits = RelayLimits {
            sessions: count(&self.sessions, default.sessions)?,
            sessions_per_user: count(&self.sessions_per_user, default.sessions_per_user)?,
            subflows_per_session: count(&self.subflows_per_session, default.subflows_per_session)?,
            streams_per_session: count(&self.streams_per_session, default.streams_per_session)?,
            stream_bytes: count(&self.stream_kib, default.stream_bytes >> 10)? << 10,
            session_bytes: count(&self.session_kib, default.session_bytes >> 10)? << 10,
            handshakes_per_second: count(&self.handshakes_per_second, default.handshakes_per_second)?,
            handshakes_per_second_per_address: count(
                &self.handshakes_per_second_per_address,
                default.handshakes_per_second_per_address,
            )?,
            handshake: Duration::from_secs(count(&self.handshake_seconds, default.handshake.as_secs())?),
        };
        if limits.session_bytes < limits.stream_bytes {
            let span = [&self.session_kib, &self.stream_kib].into_iter().flatten().next().map(Spanned::span);
            let message =
                "a session cannot hold less than one of its streams: session_kib is below stream_kib";
            return Err((span.unwrap_or(0..0), message.to_owned()));
        }
        Ok(limits)
    }
}

/// A number, one or more.
fn count<T: TryFrom<u32>>(given: &Option<Spanned<u32>>, default: T) -> Result<T, SpannedFault> {
    let Some(given) = given else { return Ok(default) };
    let value = Some(*given.get_ref()).filter(|&value| value > 0).and_then(|value| T::try_from(value).ok());
    value.ok_or_else(|| (given.span(), "must be 1 or more".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_means_the_defaults_and_so_does_the_packaged_one() {
        assert_eq!(parse("").unwrap(), RelayConfig::default());
        let packaged = parse(include_str!("../../../packaging/relay.toml")).unwrap();
        assert_eq!(packaged, RelayConfig::default());
    }

    #[test]
    fn faults_are_named_with_their_place() {
        for (text, line, says) in [
            ("listen = [\"0.0.0.0:443\"]\nadress = \"x:1\"", 2, "adress"),
            ("address = \"relay.example\"", 1, "no address of a relay"),
            ("[destinations]\nallow = [\n\"10.0.0.0/33\"]", 3, "10.0.0.0/33"),
            ("[limits]\nsessions = 0", 2, "1 or more"),
            ("[limits]\nsession_kib = 64", 2, "below stream_kib"),
        ] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.line, line, "{text}: {}", fault.message);
            assert!(fault.message.contains(says), "{text}: {}", fault.message);
        }
    }
}
