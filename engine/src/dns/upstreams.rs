//! Which DNS servers a path asks, and which names need none.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use multiway_core::flow::names::HostName;
use multiway_core::paths::PathInfo;

/// The port of DNS, RFC 1035 section 4.2.
const DNS_PORT: u16 = 53;

/// The files in which a system keeps its resolver's settings.
#[derive(Debug, Clone)]
pub struct SystemFiles {
    /// Names with fixed addresses, hosts(5).
    pub hosts: PathBuf,
    /// Servers, resolv.conf(5).
    pub resolv_conf: PathBuf,
    /// Servers behind a local stub that `resolv_conf` names, systemd-resolved(8).
    pub stub_servers: PathBuf,
}

impl Default for SystemFiles {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            stub_servers: "/run/systemd/resolve/resolv.conf".into(),
        }
    }
}

/// Where queries go.
#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    configured: Vec<SocketAddr>,
    files: SystemFiles,
    hosts: Arc<Mutex<HostsFile>>,
    own: Arc<Mutex<Vec<SocketAddr>>>,
}

#[derive(Debug, Default)]
struct HostsFile {
    modified: Option<SystemTime>,
    names: BTreeMap<HostName, Vec<IpAddr>>,
}

impl Upstreams {
    /// Servers asked where a path names none of its own; if empty, those of `files`.
    pub fn new(configured: Vec<SocketAddr>, files: SystemFiles) -> Self {
        Self { configured, files, ..Self::default() }
    }

    /// Notes an address on which Multiway itself answers, so that it is never asked.
    pub(super) fn exclude(&self, own: SocketAddr) {
        let mut excluded = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if !excluded.contains(&own) {
            excluded.push(own);
        }
    }

    /// The servers to ask on `path`: the path's own, else the configured, else the system's.
    pub(super) fn for_path(&self, path: &PathInfo) -> Vec<SocketAddr> {
        let on_dns_port = |servers: &[IpAddr]| -> Vec<SocketAddr> {
            servers.iter().map(|server| SocketAddr::new(*server, DNS_PORT)).collect()
        };
        let sources: [&dyn Fn() -> Vec<SocketAddr>; 3] =
            [&|| on_dns_port(&path.dns_servers), &|| self.configured.clone(), &|| {
                on_dns_port(&self.system_servers())
            }];
        for source in sources {
            let mut servers = source();
            servers.retain(|server| self.may_ask(*server, path));
            if !servers.is_empty() {
                return servers;
            }
        }
        Vec::new()
    }

    fn may_ask(&self, server: SocketAddr, path: &PathInfo) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let is_self = own.iter().any(|own| {
            let is_here = server.ip().is_loopback() || path.addresses.contains(&server.ip());
            own.port() == server.port() && (own.ip() == server.ip() || own.ip().is_unspecified() && is_here)
        });
        let has_family = server.ip().is_loopback()
            || path.addresses.is_empty()
            || path.addresses.iter().any(|address| address.is_ipv4() == server.is_ipv4());
        !is_self && has_family
    }

    /// The system's servers; those behind a local stub in place of the stub, as a stub decides by
    /// itself which path it asks on.
    fn system_servers(&self) -> Vec<IpAddr> {
        let servers = read_name_servers(&self.files.resolv_conf);
        if !servers.is_empty() && servers.iter().all(IpAddr::is_loopback) {
            let behind = read_name_servers(&self.files.stub_servers);
            if !behind.is_empty() {
                return behind;
            }
        }
        servers
    }

    /// Fixed addresses of `name`: from the hosts file, and the loopback for `localhost` and names
    /// under it, RFC 6761 section 6.3.
    pub(super) fn fixed(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        let modified = fs::metadata(&self.files.hosts).and_then(|meta| meta.modified()).ok();
        if modified.is_none() || modified != hosts.modified {
            let text = fs::read_to_string(&self.files.hosts).unwrap_or_default();
            *hosts = HostsFile { modified, names: parse_hosts(&text) };
        }
        let is_localhost = name.as_str() == "localhost" || name.as_str().ends_with(".localhost");
        hosts
            .names
            .get(name)
            .cloned()
            .or_else(|| is_localhost.then(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]))
    }
}

fn read_name_servers(file: &Path) -> Vec<IpAddr> {
    parse_name_servers(&fs::read_to_string(file).unwrap_or_default())
}

/// The `nameserver` lines of a resolv.conf(5); what cannot be read there is skipped, as libc does.
fn parse_name_servers(text: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .filter_map(|rest| rest.split_whitespace().next()?.parse().ok())
        .collect()
}

/// The lines of a hosts(5) file.
fn parse_hosts(text: &str) -> BTreeMap<HostName, Vec<IpAddr>> {
    let mut names: BTreeMap<HostName, Vec<IpAddr>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        for name in words.filter_map(|word| HostName::parse(word).ok()) {
            let addresses = names.entry(name).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use multiway_core::paths::{NetworkIdentity, PathId, PathKind, PathState};

    use super::*;

    fn path(addresses: &[&str], dns_servers: &[&str]) -> PathInfo {
        let parse = |texts: &[&str]| texts.iter().map(|t| t.parse().expect("valid")).collect();
        PathInfo {
            id: PathId(1),
            interface: "wlan0".into(),
            kind: PathKind::Wifi,
            metered: false,
            addresses: parse(addresses),
            gateways: Vec::new(),
            dns_servers: parse(dns_servers),
            network: NetworkIdentity::default(),
            state: PathState::Up,
        }
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect("a literal of this test")
    }

    fn files(hosts: &str, resolv_conf: &str, stub: &str) -> (tempfile::TempDir, SystemFiles) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::File::create(&path).and_then(|mut f| f.write_all(text.as_bytes())).expect("written");
            path
        };
        let files = SystemFiles {
            hosts: write("hosts", hosts),
            resolv_conf: write("resolv.conf", resolv_conf),
            stub_servers: write("stub", stub),
        };
        (dir, files)
    }

    #[test]
    fn a_path_asks_its_own_servers_before_any_other() {
        let (_dir, files) = files("", "nameserver 192.0.2.3\n", "");
        let configured = vec![socket("192.0.2.2:5353")];
        let upstreams = Upstreams::new(configured, files.clone());
        let with_own = path(&["198.51.100.7"], &["192.0.2.1"]);
        assert_eq!(upstreams.for_path(&with_own), [socket("192.0.2.1:53")]);
        let without = path(&["198.51.100.7"], &[]);
        assert_eq!(upstreams.for_path(&without), [socket("192.0.2.2:5353")]);
        let system = Upstreams::new(Vec::new(), files);
        assert_eq!(system.for_path(&without), [socket("192.0.2.3:53")]);
    }

    #[test]
    fn multiway_never_asks_itself() {
        let (_dir, files) = files("", "nameserver 127.0.0.1\nnameserver 192.0.2.3\n", "");
        let upstreams = Upstreams::new(Vec::new(), files);
        upstreams.exclude(socket("127.0.0.1:53"));
        assert_eq!(upstreams.for_path(&path(&[], &[])), [socket("192.0.2.3:53")]);
        upstreams.exclude(socket("0.0.0.0:53"));
        let own_address = path(&["198.51.100.7"], &["198.51.100.7"]);
        assert_eq!(upstreams.for_path(&own_address), [socket("192.0.2.3:53")]);
    }

    #[test]
    fn servers_behind_a_local_stub_are_asked_in_its_place() {
        let (_dir, files) = files("", "nameserver 127.0.0.53\n", "nameserver 192.0.2.9\n");
        let upstreams = Upstreams::new(Vec::new(), files);
        assert_eq!(upstreams.for_path(&path(&[], &[])), [socket("192.0.2.9:53")]);
    }

    #[test]
    fn a_server_of_a_family_the_path_lacks_is_left_out() {
        let upstreams = Upstreams::new(Vec::new(), files("", "", "").1);
        let only_v4 = path(&["198.51.100.7"], &["2001:db8::1", "192.0.2.1"]);
        assert_eq!(upstreams.for_path(&only_v4), [socket("192.0.2.1:53")]);
    }

    #[test]
    fn the_hosts_file_is_read_anew_when_it_changes() {
        let (_dir, files) = files("192.0.2.80 Web web.example.com # front\n", "", "");
        let upstreams = Upstreams::new(Vec::new(), files.clone());
        let web = HostName::parse("web").expect("valid");
        assert_eq!(upstreams.fixed(&web), Some(vec!["192.0.2.80".parse().expect("valid")]));
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        fs::write(&files.hosts, "192.0.2.81 web\n").expect("written");
        fs::File::open(&files.hosts).and_then(|f| f.set_modified(later)).expect("set");
        assert_eq!(upstreams.fixed(&web), Some(vec!["192.0.2.81".parse().expect("valid")]));
        let local = HostName::parse("app.localhost").expect("valid");
        assert!(upstreams.fixed(&local).is_some_and(|found| found[0].is_loopback()));
    }

    #[test]
    fn settings_that_cannot_be_read_are_skipped() {
        let text = "# c\nnameserver\t192.0.2.1\nnameservers 1.1.1.1\nnameserver x\n nameserver ::1 \n";
        let expected: Vec<IpAddr> = ["192.0.2.1", "::1"].map(|t| t.parse().expect("valid")).into();
        assert_eq!(parse_name_servers(text), expected);
        assert!(parse_hosts("no-address name\n192.0.2.1\n::1 bad..name\n").is_empty());
    }
}
