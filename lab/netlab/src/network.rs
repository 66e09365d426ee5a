//! The standard network: a device with several networks, and servers beyond them.
//!
//! ```text
//!            wlan0 ~~ emulated link ~~ [gateway] -- cable --+
//! [device]                                              [internet] = servers without a link of their own
//!            wwan0 ~~ emulated link ~~ [gateway] -- cable --+ ~~ emulated link ~~ [server]
//! ```

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use multiway_linksim::{LinkSpec, PathSpec, Scenario, ServerSpec};

use crate::dns::{DnsAnswer, DnsServer};
use crate::host::Host;
use crate::lab::Lab;
use crate::link::EmulatedLink;
use crate::nginx::{Nginx, NginxSpec};

/// Numbers of paths and servers stand in one byte of their addresses.
const MOST_OF_A_KIND: usize = 250;

/// What a network has beyond its scenario.
#[derive(Debug, Clone, Default)]
pub struct NetworkOptions {
    /// Multipath TCP between the device and the servers; see [`crate::enable_mptcp`].
    pub mptcp: bool,
    /// Servers with files also listen on port 443 with this certificate chain and key (PEM files).
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The device drops packets that come in by another interface than answers would leave by.
    pub strict_reverse_path_filter: bool,
    /// The scenario's changes wait for [`Network::start_schedule`].
    pub hold_schedule: bool,
}

/// A running network. Dropping it ends everything in it.
pub struct Network {
    servers: Vec<Server>,
    paths: Vec<NetworkPath>,
    device: Host,
    internet: Host,
    lab: Lab,
}

/// One of the device's networks.
pub struct NetworkPath {
    spec: PathSpec,
    number: u8,
    device: Host,
    gateway: Host,
    link: EmulatedLink,
    dns: DnsServer,
}

/// A server and its addresses.
pub struct Server {
    spec: ServerSpec,
    number: u8,
    host: Host,
    link: Option<EmulatedLink>,
    nginx: Option<Nginx>,
}

impl Network {
    /// Builds what a scenario says. Times of its changes count from the end of this.
    pub fn build(scenario: &Scenario) -> Result<Self> {
        Self::build_with(scenario, &NetworkOptions::default())
    }

    /// Builds what a scenario says, and more.
    pub fn build_with(scenario: &Scenario, options: &NetworkOptions) -> Result<Self> {
        if scenario.paths.len() > MOST_OF_A_KIND || scenario.servers.len() > MOST_OF_A_KIND {
            bail!("a network has at most {MOST_OF_A_KIND} paths and as many servers");
        }
        let lab = Lab::seeded(scenario.seed)?.with_congestion_control(&scenario.congestion_control);
        let device = lab.host("device")?;
        let internet = lab.host("internet")?;
        forward_packets(&internet)?;
        if options.strict_reverse_path_filter {
            device.sysctl("net.ipv4.conf.all.rp_filter", "1")?;
        }
        let mut paths = Vec::new();
        for (number, spec) in (1..).zip(&scenario.paths) {
            let path = NetworkPath::build(&lab, &device, &internet, number, spec)
                .with_context(|| format!("cannot build the path {}", spec.interface))?;
            paths.push(path);
        }
        if options.mptcp {
            crate::mptcp::enable_on_device(&device, &paths)?;
        }
        let mut servers = Vec::new();
        for (number, spec) in (1..).zip(&scenario.servers) {
            let server = Server::build(&lab, &internet, &paths, number, spec, options)
                .with_context(|| format!("cannot build the server {}", spec.name))?;
            servers.push(server);
        }
        name_servers(&paths, &servers);
        let resolvers: String =
            paths.iter().take(3).map(|path| format!("nameserver {}\n", path.gateway_address())).collect();
        device.set_resolv_conf(&resolvers)?;
        let network = Self { servers, paths, device, internet, lab };
        if !options.hold_schedule {
            network.start_schedule();
        }
        Ok(network)
    }

    /// Runs the scenario's changes, with times counted from now; again, if they ran before.
    pub fn start_schedule(&self) {
        for path in &self.paths {
            path.link.start_schedule(&path.spec.link);
        }
        for server in &self.servers {
            if let (Some(link), Some(spec)) = (&server.link, &server.spec.link) {
                link.start_schedule(spec);
            }
        }
    }

    /// The host with several networks.
    pub fn device(&self) -> &Host {
        &self.device
    }

    /// The router that joins the networks and the servers.
    pub fn internet(&self) -> &Host {
        &self.internet
    }

    /// The lab, to add hosts and links of one's own.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The device's networks, as in the scenario.
    pub fn paths(&self) -> &[NetworkPath] {
        &self.paths
    }

    /// The path with this interface. Asking for one that the scenario has not is a bug of the test.
    pub fn path(&self, interface: &str) -> &NetworkPath {
        self.paths
            .iter()
            .find(|path| path.interface() == interface)
            .unwrap_or_else(|| panic!("the scenario has no path {interface}"))
    }

    /// The servers, as in the scenario.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server with this name. Asking for one that the scenario has not is a bug of the test.
    pub fn server(&self, name: &str) -> &Server {
        self.servers
            .iter()
            .find(|server| server.name() == name)
            .unwrap_or_else(|| panic!("the scenario has no server {name}"))
    }
}

impl NetworkPath {
    fn build(lab: &Lab, device: &Host, internet: &Host, number: u8, spec: &PathSpec) -> Result<Self> {
        let interface = &spec.interface;
        let gateway = lab.host(&format!("gateway-{interface}"))?;
        forward_packets(&gateway)?;
        let link = lab.link(device, interface, &gateway, "lan", without_schedule(&spec.link))?;
        lab.cable(&gateway, "wan", internet, interface)?;
        let n = number;
        gateway.ip_batch(&format!(
            "addr add 10.{n}.0.1/24 dev lan\n\
             addr add fd00:{n:x}::1/64 dev lan nodad\n\
             addr add 10.200.{n}.2/24 dev wan\n\
             addr add fd00:200:{n:x}::2/64 dev wan nodad\n\
             route add default via 10.200.{n}.1\n\
             route add ::/0 via fd00:200:{n:x}::1\n"
        ))?;
        internet.ip_batch(&format!(
            "addr add 10.200.{n}.1/24 dev {interface}\n\
             addr add fd00:200:{n:x}::1/64 dev {interface} nodad\n\
             route add fd00:{n:x}::/64 via fd00:200:{n:x}::2\n"
        ))?;
        if spec.nat {
            gateway.nft(
                "table ip lab { chain nat { type nat hook postrouting priority srcnat; oifname wan masquerade; }; }",
            )?;
        } else {
            internet.ip(&format!("route add 10.{n}.0.0/24 via 10.200.{n}.2"))?;
        }
        let dns_addresses = [gateway_address(n).into(), gateway_address_v6(n).into()];
        let dns = DnsServer::start(&gateway, &dns_addresses)?;
        let path = Self { spec: spec.clone(), number, device: device.clone(), gateway, link, dns };
        path.configure_device()?;
        Ok(path)
    }

    /// Gives the device's interface its addresses and its default routes, as a DHCP client would.
    fn configure_device(&self) -> Result<()> {
        let (n, interface, metric) = (self.number, self.interface(), self.spec.metric);
        self.device.ip_batch(&format!(
            "addr add 10.{n}.0.2/24 dev {interface}\n\
             addr add fd00:{n:x}::2/64 dev {interface} nodad\n\
             route add default via 10.{n}.0.1 dev {interface} metric {metric}\n\
             route add ::/0 via fd00:{n:x}::1 dev {interface} metric {metric}\n"
        ))
    }

    /// The device's interface on it.
    pub fn interface(&self) -> &str {
        &self.spec.interface
    }

    /// What the scenario says of it.
    pub fn spec(&self) -> &PathSpec {
        &self.spec
    }

    /// The emulated link, for live control and counters.
    pub fn link(&self) -> &EmulatedLink {
        &self.link
    }

    /// The host at the link's far end.
    pub fn gateway(&self) -> &Host {
        &self.gateway
    }

    /// The device's IPv4 address on it.
    pub fn device_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number, 0, 2)
    }

    /// The device's IPv6 address on it.
    pub fn device_address_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, self.number.into(), 0, 0, 0, 0, 0, 2)
    }

    /// The gateway's IPv4 address on it, which is also its DNS server's.
    pub fn gateway_address(&self) -> Ipv4Addr {
        gateway_address(self.number)
    }

    /// The gateway's IPv6 address on it.
    pub fn gateway_address_v6(&self) -> Ipv6Addr {
        gateway_address_v6(self.number)
    }

    /// Its DNS server, at the gateway's addresses. It knows the names of the servers that the path
    /// reaches, each with their public addresses.
    pub fn dns(&self) -> &DnsServer {
        &self.dns
    }

    /// The address under which servers see the device's IPv4 connections over it.
    pub fn address_seen_by_servers(&self) -> Ipv4Addr {
        if self.spec.nat { Ipv4Addr::new(10, 200, self.number, 2) } else { self.device_address() }
    }

    /// The device leaves the network: carrier, addresses and routes are gone.
    pub fn disconnect(&self) -> Result<()> {
        self.link.set_carrier(false);
        self.remove_addresses()
    }

    /// The device is in the network again, with the same addresses.
    pub fn reconnect(&self) -> Result<()> {
        self.link.set_carrier(true);
        self.configure_device()
    }

    /// The device loses its addresses and routes on the network while the link stays up.
    pub fn remove_addresses(&self) -> Result<()> {
        let interface = self.interface();
        self.device.ip(&format!("addr flush dev {interface}"))?;
        self.device.ip(&format!("-6 route flush dev {interface}")).map(drop)
    }
}

impl Server {
    fn build(
        lab: &Lab,
        internet: &Host,
        paths: &[NetworkPath],
        number: u8,
        spec: &ServerSpec,
        options: &NetworkOptions,
    ) -> Result<Self> {
        let (host, link) = match &spec.link {
            None => (internet.clone(), None),
            Some(link) => {
                let host = lab.host(&spec.name)?;
                let interface = format!("server{number}");
                let link = lab.link(internet, &interface, &host, "uplink", without_schedule(link))?;
                (host, Some(link))
            }
        };
        let mut server = Self { spec: spec.clone(), number, host, link, nginx: None };
        let mut on_host = String::new();
        let mut on_internet = String::new();
        for address in server.addresses() {
            // Without "nodad" an IPv6 address cannot be bound to at once.
            let suffix = if address.is_ipv4() { "/32 dev lo" } else { "/128 dev lo nodad" };
            writeln!(on_host, "addr add {address}{suffix}").expect("strings take everything");
            if spec.link.is_some() {
                writeln!(on_internet, "route add {address} dev server{number}")
                    .expect("strings take everything");
            }
        }
        if spec.link.is_some() {
            on_host.push_str("route add default dev uplink\nroute add ::/0 dev uplink\n");
        }
        server.host.ip_batch(&on_host)?;
        internet.ip_batch(&on_internet)?;
        for path in paths.iter().filter(|path| !server.is_reached_by(path.interface())) {
            let rules: String = server
                .addresses()
                .iter()
                .map(|address| format!("route add unreachable {address}\n"))
                .collect();
            path.gateway.ip_batch(&rules)?;
        }
        if options.mptcp {
            crate::mptcp::enable_on_server(&server.host)?;
        }
        if !spec.files.is_empty() {
            server.nginx = Some(server.nginx_spec(options).start(lab, &server.host)?);
        }
        Ok(server)
    }

    /// An nginx for this server's addresses and files, as [`Network::build_with`] starts it.
    pub fn nginx_spec(&self, options: &NetworkOptions) -> NginxSpec {
        let on_port = |port| self.addresses().map(|address| SocketAddr::new(address, port));
        let mut nginx = NginxSpec::new();
        for address in on_port(80) {
            nginx = nginx.listen(address);
        }
        if let Some((certificate, key)) = &options.tls {
            nginx = nginx.listen_tls(&on_port(443), certificate, key);
        }
        for file in &self.spec.files {
            nginx = nginx.file(&file.name, file.bytes);
        }
        if options.mptcp { nginx.mptcp() } else { nginx }
    }

    /// Its name in the scenario.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What the scenario says of it.
    pub fn spec(&self) -> &ServerSpec {
        &self.spec
    }

    /// The host it is on; servers without a link of their own share one.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The link of its own, when it has one.
    pub fn link(&self) -> Option<&EmulatedLink> {
        self.link.as_ref()
    }

    /// Its nginx, when the scenario gives it files.
    pub fn nginx(&self) -> Option<&Nginx> {
        self.nginx.as_ref()
    }

    /// Whether the path with this interface reaches it.
    pub fn is_reached_by(&self, interface: &str) -> bool {
        self.spec.paths.is_empty() || self.spec.paths.iter().any(|path| path == interface)
    }

    /// Its first address, 10.99.0.1 for the first server.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 99, 0, self.number)
    }

    /// Its first IPv6 address.
    pub fn address_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, self.number.into())
    }

    /// Another address, outside all private ranges: what DNS answers, since answers from private ranges
    /// are suspicious.
    pub fn public_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(93, 184, 216, self.number)
    }

    /// The same for IPv6.
    pub fn public_address_v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0x2606, 0x2800, 0x220, 1, 0, 0, 0, self.number.into())
    }

    /// All its addresses.
    pub fn addresses(&self) -> [IpAddr; 4] {
        [
            self.address().into(),
            self.public_address().into(),
            self.address_v6().into(),
            self.public_address_v6().into(),
        ]
    }

    /// The URL of one of its files, by its first address.
    pub fn url(&self, file: &str) -> String {
        format!("http://{}/{file}", self.address())
    }
}

/// A network runs its links' schedules itself, once everything is there.
fn without_schedule(link: &LinkSpec) -> LinkSpec {
    let mut link = link.clone();
    link.up.schedule.clear();
    link.down.schedule.clear();
    link
}

fn gateway_address(path: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, path, 0, 1)
}

fn gateway_address_v6(path: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, path.into(), 0, 0, 0, 0, 0, 1)
}

/// Tells every path's DNS server the names of the servers it reaches. Servers may share a name; then it
/// has the addresses of all of them, or on each path those of the path's own one.
fn name_servers(paths: &[NetworkPath], servers: &[Server]) {
    for path in paths {
        let reached = || servers.iter().filter(|server| server.is_reached_by(path.interface()));
        for name in reached().flat_map(|server| &server.spec.dns_names) {
            let addresses = reached()
                .filter(|server| server.spec.dns_names.contains(name))
                .flat_map(|server| [server.public_address().into(), server.public_address_v6().into()])
                .collect();
            path.dns.set(name, DnsAnswer::Addresses(addresses));
        }
    }
}

fn forward_packets(host: &Host) -> Result<()> {
    host.sysctl("net.ipv4.ip_forward", "1")?;
    host.sysctl("net.ipv6.conf.all.forwarding", "1")
}
