//! What to intercept, and the nftables script that says so.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ipnet::IpNet;

use super::cgroup_path::CgroupMatch;

/// Name of the table, of family `inet`.
pub const TABLE: &str = "multiway";

/// Before the standard place of destination NAT in the output hook (-100), so that container
/// runtimes' rules, which come first otherwise, do not take the connections.
const PRIORITY: i32 = -105;

/// Destinations that one link alone can reach, or many hosts at once: left to the kernel, but for
/// DNS, since routers announce link-local resolvers (RFC 8106).
const LINK_LOCAL_IPV4: &str = "169.254.0.0/16, 224.0.0.0/4, 255.255.255.255";
/// The same for IPv6.
const LINK_LOCAL_IPV6: &str = "fe80::/10, ff00::/8";

/// The connections to hand to the proxy; a desired state, not a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InterceptPlan {
    /// Users whose programs are intercepted, by number.
    pub users: BTreeSet<u32>,
    /// Groups whose programs are intercepted, by number of the program's effective group.
    pub groups: BTreeSet<u32>,
    /// Version 2 control groups whose programs are intercepted, as in `/proc/PID/cgroup`, with
    /// or without the leading slash; the groups must exist.
    pub cgroups: Vec<String>,
    /// Where TCP connections go: on 127.0.0.1 and on ::1.
    pub proxy_port: u16,
    /// Where DNS queries go, UDP and TCP, on 127.0.0.1 and on ::1; `None` leaves UDP queries
    /// alone and treats TCP queries as any connection.
    ///
    /// Queries to loopback addresses are taken too: stub resolvers listen there.
    pub dns_port: Option<u16>,
    /// Firewall mark of the proxy's own sockets; 0, the mark of all others, exempts nothing.
    pub bypass_mark: u32,
    /// Destinations that are left alone, DNS included.
    pub excluded: Vec<IpNet>,
}

/// A table with a chain for translation and no rules, named after its owner's process.
pub(super) fn hold_script(process: u32) -> String {
    format!(
        "table inet {TABLE}-hold-{process} {{\nflags owner\n}}\n\
         table inet {TABLE}-hold-{process} {{\nflags owner\n\
         chain output {{\ntype nat hook output priority {PRIORITY}; policy accept;\n}}\n}}\n"
    )
}

/// One batch that replaces whatever the table held.
pub(super) fn script(plan: &InterceptPlan, cgroups: &[CgroupMatch]) -> String {
    let mut script = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        script.write_fmt(text).expect("writing to a string cannot fail");
        script.push('\n');
    };
    line(format_args!("table inet {TABLE} {{"));
    line(format_args!("flags owner"));
    line(format_args!("}}"));
    line(format_args!("flush table inet {TABLE}"));
    line(format_args!("table inet {TABLE} {{"));
    line(format_args!("flags owner"));

    line(format_args!("chain caught {{"));
    if let Some(port) = plan.dns_port {
        line(format_args!("udp dport 53 redirect to :{port}"));
        line(format_args!("tcp dport 53 redirect to :{port}"));
    }
    // Packets to the host's own addresses, 127.0.0.0/8 among them, leave by the loopback device.
    line(format_args!("oifname \"lo\" return"));
    line(format_args!("ip daddr {{ {LINK_LOCAL_IPV4} }} return"));
    line(format_args!("ip6 daddr {{ {LINK_LOCAL_IPV6} }} return"));
    line(format_args!("meta l4proto tcp redirect to :{}", plan.proxy_port));
    line(format_args!("}}"));

    line(format_args!("chain output {{"));
    line(format_args!("type nat hook output priority {PRIORITY}; policy accept;"));
    if plan.bypass_mark != 0 {
        line(format_args!("meta mark {} return", plan.bypass_mark));
    }
    for network in &plan.excluded {
        let family = if network.network().is_ipv4() { "ip" } else { "ip6" };
        line(format_args!("{family} daddr {} return", network.trunc()));
    }
    for user in &plan.users {
        line(format_args!("meta skuid {user} goto caught"));
    }
    for group in &plan.groups {
        line(format_args!("meta skgid {group} goto caught"));
    }
    for cgroup in cgroups {
        line(format_args!(
            "socket cgroupv2 level {} \"{}\" goto caught",
            cgroup.level, cgroup.path_for_nftables
        ));
    }
    line(format_args!("}}"));
    line(format_args!("}}"));
    script
}
