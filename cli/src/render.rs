//! Tables of what the daemon tells.

mod bond;

use comfy_table::{ContentArrangement, Table, presets};
use multiway_api::{FlowStatus, Interception, PathStatus, Status};

use crate::units;

/// Events shown; older ones are in the log.
const EVENTS_SHOWN: usize = 8;

/// Destinations and reasons longer than this are cut in tables.
const LONGEST_CELL: usize = 48;

/// Everything that `multiway status` shows.
pub(crate) fn status(status: &Status) -> String {
    let mut text = format!("multiway {}, up for {}\n", status.version, duration(status.uptime_seconds));
    for listener in &status.listeners {
        text.push_str(&format!("{}: {}\n", listener.kind, listener.address));
    }
    text.push_str(&format!("interception: {}\n", interception(&status.interception)));
    text.push_str("\nPATHS\n");
    text.push_str(&paths(&status.paths));
    text.push_str("\nFLOWS\n");
    text.push_str(&flows(&status.flows));
    if !status.relays.is_empty() {
        text.push_str("\nBOND\n");
        status.relays.iter().for_each(|status| text.push_str(&bond::relay(status)));
    }
    let latest = &status.events[status.events.len().saturating_sub(EVENTS_SHOWN)..];
    if !latest.is_empty() {
        text.push_str("\nEVENTS\n");
        for event in latest {
            text.push_str(&format!(
                "{}  {}\n",
                time_of_day(event.unix_ms),
                printable(&event.detail.to_string())
            ));
        }
    }
    text
}

/// One row per interface, and below the table what is missing.
pub(crate) fn paths(paths: &[PathStatus]) -> String {
    if paths.is_empty() {
        return "none: there is no network interface but the loopback\n".to_owned();
    }
    let mut table =
        table(&["INTERFACE", "KIND", "STATE", "ADDRESS", "GATEWAY", "RTT", "RATE", "LOSS", "TODAY"]);
    for path in paths {
        let kind = if path.metered { format!("{} (metered)", path.kind) } else { path.kind.to_string() };
        table.add_row([
            printable(&path.interface),
            kind,
            path.state.to_string(),
            lines(&path.addresses),
            lines(&path.gateways),
            match (path.rtt_ms, path.jitter_ms) {
                (Some(rtt), Some(jitter)) => format!("{rtt:.1} ± {jitter:.1} ms"),
                (Some(rtt), None) => format!("{rtt:.1} ms"),
                (None, _) => unknown(),
            },
            path.throughput_bits_per_second.map_or_else(unknown, units::rate),
            path.loss_ppm.map_or_else(unknown, |ppm| format!("{:.2}%", f64::from(ppm) / 10_000.0)),
            units::bytes(path.bytes_today),
        ]);
    }
    let mut text = format!("{table}\n");
    for path in paths {
        if let Some(missing) = &path.missing {
            let (interface, what) = (printable(&path.interface), printable(&missing.what));
            text.push_str(&format!("{interface}: {what}\n    {}\n", printable(&missing.mend)));
        }
    }
    text
}

fn flows(flows: &[FlowStatus]) -> String {
    if flows.is_empty() {
        return "none\n".to_owned();
    }
    let mut table = table(&["PROGRAM", "DESTINATION", "TREATMENT", "WHY", "BYTES", "SHARES"]);
    for flow in flows {
        let shares: Vec<String> = flow
            .shares
            .iter()
            .map(|part| format!("{} {}", printable(&part.interface), units::percent(part.share)))
            .collect();
        table.add_row([
            flow.program.as_deref().map_or_else(unknown, cut),
            cut(&flow.destination),
            flow.treatment.to_string(),
            cut(&flow.why),
            units::bytes(flow.bytes),
            shares.join(", "),
        ]);
    }
    format!("{table}\n")
}

fn interception(interception: &Interception) -> String {
    if !interception.active {
        let reason = interception.reason.as_deref().unwrap_or("nobody is to be intercepted");
        return format!("off ({})", printable(reason));
    }
    let groups = [
        ("users", &interception.users),
        ("groups", &interception.groups),
        ("cgroups", &interception.cgroups),
    ];
    let whose: Vec<String> = groups
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(kind, names)| format!("{kind} {}", printable(&names.join(", "))))
        .collect();
    if whose.is_empty() {
        "on, for programs under `multiway run`".to_owned()
    } else {
        format!("on, for {}", whose.join("; "))
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table
}

fn lines<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return unknown();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn unknown() -> String {
    "-".to_owned()
}

fn cut(text: &str) -> String {
    let text = printable(text);
    if text.chars().count() <= LONGEST_CELL {
        return text;
    }
    text.chars().take(LONGEST_CELL - 1).chain(['…']).collect()
}

/// Programs and servers choose their names: none of them may steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn duration(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours} h {minutes} min")
    } else if minutes > 0 {
        format!("{minutes} min {seconds} s")
    } else {
        format!("{seconds} s")
    }
}

/// In UTC: the standard library knows no time zones.
fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use multiway_api::{Event, EventDetail, Missing, PathKind, PathShare, PathState, Treatment};

    use super::*;

    fn sample() -> Status {
        Status {
            version: "1.2.3".into(),
            uptime_seconds: 3723,
            paths: vec![PathStatus {
                interface: "wwan0".into(),
                kind: PathKind::Cellular,
                addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
                gateways: vec![],
                metered: true,
                state: PathState::NoDefaultRoute,
                missing: Some(Missing { what: "no default route".into(), mend: "ip route add".into() }),
                rtt_ms: Some(61.04),
                jitter_ms: Some(3.0),
                throughput_bits_per_second: Some(15_000_000),
                loss_ppm: Some(1_500),
                bytes_today: 7_000_000,
            }],
            flows: vec![FlowStatus {
                id: 1,
                program: Some("cu\u{1b}[2Jrl".into()),
                destination: "example.org:80".into(),
                treatment: Treatment::Split,
                why: "a large object".into(),
                age_seconds: 1.0,
                bytes: 5_000,
                shares: vec![PathShare { interface: "wwan0".into(), bytes: 5_000, share: 1.0 }],
            }],
            relays: vec![],
            listeners: vec![],
            interception: Interception {
                active: false,
                reason: Some("no capability".into()),
                users: vec![],
                groups: vec![],
                cgroups: vec![],
            },
            events: vec![Event {
                unix_ms: 3_661_000,
                detail: EventDetail::PathChanged { interface: "wlan0".into(), state: "down".into() },
            }],
        }
    }

    #[test]
    fn a_status_shows_paths_flows_and_events() {
        let text = status(&sample());
        for part in [
            "multiway 1.2.3, up for 1 h 2 min",
            "interception: off (no capability)",
            "cellular (metered)",
            "2001:db8::1",
            "61.0 ± 3.0 ms",
            "15.0 Mbit/s",
            "0.15%",
            "7.0 MB",
            "wwan0: no default route\n    ip route add",
            "example.org:80",
            "wwan0 100%",
            "01:01:01Z  wlan0 is now down",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert!(!status(&sample()).contains('\u{1b}'));
    }
}
