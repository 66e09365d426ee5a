use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use multiway_core::bond::scheduler::SchedulerKind;
use multiway_core::bond::{DetectorKind, Policy};
use multiway_core::paths::{InterfacePattern, OracleConfig, PathKind, Permission, Preference};
use serde::Deserialize;
use toml::Spanned;

use super::{
    BondConfig, BufferConfig, Config, ControlConfig, DEFAULT_LISTEN, DnsConfig, Fault, InterceptConfig,
    LEAST_FLOW_BUFFER, PathOverride, PathsConfig, PortalProbe,
};

/// Longest name of an interface in the kernel (`IFNAMSIZ` less the terminator).
const LONGEST_INTERFACE_NAME: usize = 15;

/// Reads a configuration text and checks it completely.
pub fn parse(text: &str) -> Result<Config, Fault> {
    let file: File = toml::from_str(text)
        .map_err(|error| fault(text, error.span().unwrap_or(0..0), error.message().to_owned()))?;
    file.check().map_err(|(span, message)| fault(text, span, message))
}

pub(crate) fn fault(text: &str, span: Range<usize>, message: String) -> Fault {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Fault {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        span,
        message,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: SocketAddr,
    preference: Choice,
    tolerance_ms: Option<u64>,
    features: Option<PathBuf>,
    history: Option<PathBuf>,
    control: Control,
    paths: Paths,
    intercept: Intercept,
    dns: Dns,
    buffers: Buffers,
    bond: Bond,
}

impl Default for File {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            preference: Choice::default(),
            tolerance_ms: None,
            features: None,
            history: None,
            control: Control::default(),
            paths: Paths::default(),
            intercept: Intercept::default(),
            dns: Dns::default(),
            buffers: Buffers::default(),
            bond: Bond::default(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum Choice {
    #[default]
    Thrifty,
    Fast,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Control {
    socket: Option<PathBuf>,
    group: Option<String>,
    everyone_may_run: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Paths {
    allow: List,
    deny: List,
    portal_probe: Option<Spanned<String>>,
    #[serde(rename = "override")]
    overrides: BTreeMap<Spanned<String>, Override>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Override {
    kind: Option<PathKind>,
    metered: Option<bool>,
    dns: List,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Intercept {
    enabled: Option<bool>,
    users: Vec<Spanned<toml::Value>>,
    groups: Vec<Spanned<toml::Value>>,
    cgroups: List,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Dns {
    upstreams: List,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Buffers {
    flow_mib: Option<Spanned<u64>>,
    total_mib: Option<Spanned<u64>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Bond {
    enabled: Option<bool>,
    mode: Mode,
    scheduler: Option<SchedulerName>,
    detector: DetectorName,
    membership: Option<PathBuf>,
    oracle: Oracle,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Oracle {
    period_ms: Option<Spanned<u64>>,
    loss_percent: Option<Spanned<u32>>,
    retransmissions_percent: Option<Spanned<u32>>,
    timeout_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    Handover,
    Aggregate,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SchedulerName {
    MinRtt,
    LastReceived,
    Ecf,
    Blest,
    Redundant,
    Priority,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum DetectorName {
    #[default]
    Improved,
    Multimob,
}

/// Elements are checked after reading: the reader knows only where the whole list is.
type List = Vec<Spanned<String>>;

type SpannedFault = (Range<usize>, String);

impl File {
    fn check(self) -> Result<Config, SpannedFault> {
        Ok(Config {
            listen: self.listen,
            control: ControlConfig {
                socket: self.control.socket,
                group: self.control.group,
                everyone_may_run: self.control.everyone_may_run,
            },
            preference: match self.preference {
                Choice::Thrifty => Preference::Thrifty {
                    tolerance: self.tolerance_ms.map_or(Preference::DEFAULT_TOLERANCE, Duration::from_millis),
                },
                Choice::Fast => Preference::Fast,
            },
            features: self.features,
            history: self.history,
            paths: self.paths.check()?,
            intercept: InterceptConfig {
                enabled: self.intercept.enabled.unwrap_or(true),
                users: each(&self.intercept.users, account)?,
                groups: each(&self.intercept.groups, account)?,
                cgroups: each(&self.intercept.cgroups, |path| cgroup_path(path))?,
            },
            dns: DnsConfig { upstreams: each(&self.dns.upstreams, |text| address(text))? },
            buffers: self.buffers.check()?,
            bond: self.bond.check()?,
        })
    }
}

impl Paths {
    fn check(&self) -> Result<PathsConfig, SpannedFault> {
        let pattern = |name: &String| interface_name(name).map(InterfacePattern);
        let allow = each(&self.allow, pattern)?;
        let deny = each(&self.deny, |name| {
            let name = pattern(name)?;
            if allow.contains(&name) {
                Err(format!("`{}` is both allowed and denied", name.0))
            } else {
                Ok(name)
            }
        })?;
        let permission = Permission { only: (!allow.is_empty()).then_some(allow), deny };
        let mut overrides = BTreeMap::new();
        for (name, given) in &self.overrides {
            let interface = interface_name(name.get_ref()).map_err(|message| (name.span(), message))?;
            let dns = each(&given.dns, |text| address(text))?;
            overrides.insert(interface, PathOverride { kind: given.kind, metered: given.metered, dns });
        }
        let probe = |url: &Spanned<String>| {
            url.get_ref().parse::<PortalProbe>().map_err(|error| (url.span(), error.to_string()))
        };
        let portal_probe = self.portal_probe.as_ref().map(probe).transpose()?;
        Ok(PathsConfig { permission, overrides, portal_probe })
    }
}

impl Bond {
    fn check(self) -> Result<BondConfig, SpannedFault> {
        Ok(BondConfig {
            enabled: self.enabled.unwrap_or(true),
            mode: match self.mode {
                Mode::Handover => Policy::Handover,
                Mode::Aggregate => Policy::Aggregate,
            },
            scheduler: self.scheduler.map(|name| match name {
                SchedulerName::MinRtt => SchedulerKind::MinRtt,
                SchedulerName::LastReceived => SchedulerKind::LastReceived,
                SchedulerName::Ecf => SchedulerKind::Ecf,
                SchedulerName::Blest => SchedulerKind::Blest,
                SchedulerName::Redundant => SchedulerKind::Redundant,
                SchedulerName::Priority => SchedulerKind::Priority,
            }),
            detector: match self.detector {
                DetectorName::Improved => DetectorKind::Improved,
                DetectorName::Multimob => DetectorKind::MultiMob,
            },
            oracle: self.oracle.check()?,
            membership: self.membership,
        })
    }
}

impl Oracle {
    fn check(&self) -> Result<OracleConfig, SpannedFault> {
        let default = OracleConfig::default();
        let time = |given: &Option<Spanned<u64>>, or| given.as_ref().map_or(Ok(or), milliseconds);
        let part = |given: &Option<Spanned<u32>>, or| given.as_ref().map_or(Ok(or), percent);
        Ok(OracleConfig {
            period: time(&self.period_ms, default.period)?,
            loss_ppm: part(&self.loss_percent, default.loss_ppm)?,
            retransmissions_ppm: part(&self.retransmissions_percent, default.retransmissions_ppm)?,
            timeout: time(&self.timeout_ms, default.timeout)?,
            ..default
        })
    }
}

impl Buffers {
    fn check(&self) -> Result<BufferConfig, SpannedFault> {
        let mut buffers = BufferConfig::default();
        if let Some(flow) = &self.flow_mib {
            buffers.flow_bytes = mebibytes(flow)?;
        }
        let Some(total) = &self.total_mib else {
            buffers.total_bytes = buffers.total_bytes.max(buffers.flow_bytes);
            return Ok(buffers);
        };
        buffers.total_bytes = mebibytes(total)?;
        if buffers.total_bytes < buffers.flow_bytes {
            let flow_mib = buffers.flow_bytes >> 20;
            return Err((
                total.span(),
                format!("all flows together cannot hold less than one: flow_mib is {flow_mib}"),
            ));
        }
        Ok(buffers)
    }
}

fn each<V, T>(list: &[Spanned<V>], check: impl Fn(&V) -> Result<T, String>) -> Result<Vec<T>, SpannedFault> {
    list.iter().map(|item| check(item.get_ref()).map_err(|message| (item.span(), message))).collect()
}

fn mebibytes(value: &Spanned<u64>) -> Result<u64, SpannedFault> {
    let bytes = value.get_ref().checked_mul(1 << 20).filter(|&bytes| bytes >= LEAST_FLOW_BUFFER);
    bytes.ok_or_else(|| (value.span(), format!("`{}` is not a size in MiB, 1 or more", value.get_ref())))
}

fn milliseconds(value: &Spanned<u64>) -> Result<Duration, SpannedFault> {
    let time = Some(*value.get_ref()).filter(|&time| time > 0).map(Duration::from_millis);
    time.ok_or_else(|| (value.span(), "a time in milliseconds is 1 or more".to_owned()))
}

/// In parts per million.
fn percent(value: &Spanned<u32>) -> Result<u32, SpannedFault> {
    let part = Some(*value.get_ref()).filter(|part| (1..=100).contains(part)).map(|part| part * 10_000);
    part.ok_or_else(|| (value.span(), format!("`{}` is no percentage from 1 to 100", value.get_ref())))
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no IP address"))
}

/// A name the kernel would accept for an interface.
fn interface_name(name: &str) -> Result<String, String> {
    let fits = !name.is_empty() && name.len() <= LONGEST_INTERFACE_NAME && name != "." && name != "..";
    if fits && !name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return Ok(name.to_owned());
    }
    Err(format!("`{name}` cannot be the name of an interface; `multiway paths` lists those there are"))
}

/// A control group's path below the mount point.
fn cgroup_path(path: &str) -> Result<String, String> {
    let below = path.trim_matches('/');
    if below.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err(format!("`{path}` is no control group below the mount point, such as `user.slice`"));
    }
    Ok(below.to_owned())
}

/// The name or number of a user or group.
fn account(value: &toml::Value) -> Result<String, String> {
    match value {
        toml::Value::String(name) if !name.is_empty() => Ok(name.clone()),
        toml::Value::Integer(number) if (0..i64::from(u32::MAX)).contains(number) => Ok(number.to_string()),
        other => Err(format!("`{other}` is neither a name nor a number from 0 to 4294967294")),
    }
}
