//! The file as it is written, and how it becomes a [`Scenario`].

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use multiway_core::paths::PathKind;
use serde::Deserialize;
use toml::Spanned;

use super::text::{DurationText, LossText, QueueText, RateText, SizeText};
use super::{
    DEFAULT_CONGESTION_CONTROL, DEFAULT_SEED, FileSpec, METRIC_STEP, PathSpec, Scenario, ScenarioError,
    ServerSpec,
};
use crate::config::{Capacity, Change, FULL_PACKET_BYTES, LinkConfig, LinkSpec, default_queue};
use crate::loss::Loss;
use crate::trace::Trace;

/// The longest interface name that Linux takes (`IFNAMSIZ` less the closing zero).
const LONGEST_INTERFACE_NAME: usize = 15;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioText {
    name: String,
    #[serde(default = "default_seed")]
    seed: u64,
    #[serde(default = "default_congestion_control")]
    congestion_control: String,
    path: Spanned<Vec<PathText>>,
    server: Spanned<Vec<ServerText>>,
}

fn default_seed() -> u64 {
    DEFAULT_SEED
}

fn default_congestion_control() -> String {
    DEFAULT_CONGESTION_CONTROL.to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathText {
    interface: Spanned<String>,
    kind: Option<PathKind>,
    metric: Option<u32>,
    #[serde(default)]
    nat: bool,
    #[serde(default)]
    change: Vec<Spanned<ChangeText>>,
    rtt: Option<DurationText>,
    rate: Option<RateText>,
    trace: Option<Spanned<String>>,
    jitter: Option<DurationText>,
    loss: Option<LossText>,
    queue: Option<Spanned<QueueText>>,
    down: Option<Spanned<DirectionText>>,
    up: Option<Spanned<DirectionText>>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
struct DirectionText {
    rate: Option<RateText>,
    trace: Option<Spanned<String>>,
    delay: Option<DurationText>,
    jitter: Option<DurationText>,
    loss: Option<LossText>,
    queue: Option<Spanned<QueueText>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "kebab-case")]
enum DirectionName {
    Up,
    Down,
    #[default]
    Both,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeText {
    at: DurationText,
    #[serde(default)]
    direction: DirectionName,
    rate: Option<RateText>,
    delay: Option<DurationText>,
    jitter: Option<DurationText>,
    loss: Option<LossText>,
    queue: Option<SizeText>,
    blackhole: Option<bool>,
    carrier: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerText {
    name: Spanned<String>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    paths: Vec<Spanned<String>>,
    rtt: Option<DurationText>,
    rate: Option<RateText>,
    #[serde(default)]
    files: Vec<FileText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    name: Spanned<String>,
    size: SizeText,
}

pub(super) fn parse(
    text: &str,
    read_trace: &dyn Fn(&str) -> std::io::Result<String>,
) -> Result<Scenario, ScenarioError> {
    let file: ScenarioText =
        toml::from_str(text).map_err(|error| at(text, error.span(), error.message().to_owned()))?;
    Reader { text, read_trace }.scenario(file)
}

fn at(text: &str, span: Option<Range<usize>>, message: String) -> ScenarioError {
    let position = span.map(|span| {
        let before = &text[..text.floor_char_boundary(span.start)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    });
    ScenarioError { file: None, at: position, message }
}

struct Reader<'a> {
    text: &'a str,
    read_trace: &'a dyn Fn(&str) -> std::io::Result<String>,
}

impl Reader<'_> {
    fn error(&self, span: Range<usize>, message: impl Into<String>) -> ScenarioError {
        at(self.text, Some(span), message.into())
    }

    fn scenario(&self, file: ScenarioText) -> Result<Scenario, ScenarioError> {
        if file.path.as_ref().is_empty() {
            return Err(self.error(file.path.span(), "a scenario needs at least one [[path]]"));
        }
        if file.server.as_ref().is_empty() {
            return Err(self.error(file.server.span(), "a scenario needs at least one [[server]]"));
        }
        let mut interfaces = HashSet::new();
        let mut paths = Vec::new();
        for (index, path) in file.path.into_inner().into_iter().enumerate() {
            if !interfaces.insert(path.interface.as_ref().clone()) {
                return Err(self.error(
                    path.interface.span(),
                    format!("two paths have the interface `{}`", path.interface.as_ref()),
                ));
            }
            paths.push(self.path(index, path)?);
        }
        let mut names = HashSet::new();
        let mut servers = Vec::new();
        for server in file.server.into_inner() {
            if !names.insert(server.name.as_ref().clone()) {
                return Err(self.error(
                    server.name.span(),
                    format!("two servers have the name `{}`", server.name.as_ref()),
                ));
            }
            servers.push(self.server(server, &paths)?);
        }
        Ok(Scenario {
            name: file.name,
            seed: file.seed,
            congestion_control: file.congestion_control,
            paths,
            servers,
        })
    }

    fn path(&self, index: usize, path: PathText) -> Result<PathSpec, ScenarioError> {
        let interface = path.interface.as_ref();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if interface.is_empty()
            || interface.len() > LONGEST_INTERFACE_NAME
            || !interface.chars().all(is_name)
            || interface == "lo"
        {
            return Err(self.error(
                path.interface.span(),
                format!(
                    "`{interface}` is no interface name: use up to {LONGEST_INTERFACE_NAME} letters, digits, \
                     `-`, `_` and `.`"
                ),
            ));
        }
        let shared = DirectionText {
            rate: path.rate,
            trace: path.trace,
            delay: path.rtt.map(|rtt| DurationText(rtt.0 / 2)),
            jitter: path.jitter,
            loss: path.loss,
            queue: path.queue,
        };
        let name = path.interface.span();
        let mut link = self.link(&shared, path.down, path.up, name)?;
        for change in path.change {
            self.change(&change, &mut link)?;
        }
        // The kernel applies what it is told in order of time, so do we.
        link.up.schedule.sort_by_key(|(at, _)| *at);
        link.down.schedule.sort_by_key(|(at, _)| *at);
        let kind = path.kind.unwrap_or(PathKind::Other);
        let metric = path
            .metric
            .unwrap_or_else(|| METRIC_STEP * u32::try_from(index + 1).unwrap_or(u32::MAX / METRIC_STEP));
        Ok(PathSpec { interface: path.interface.into_inner(), kind, metric, nat: path.nat, link })
    }

    fn link(
        &self,
        shared: &DirectionText,
        down: Option<Spanned<DirectionText>>,
        up: Option<Spanned<DirectionText>>,
        owner: Range<usize>,
    ) -> Result<LinkSpec, ScenarioError> {
        let resolve = |own: Option<Spanned<DirectionText>>| {
            let span = own.as_ref().map_or(owner.clone(), Spanned::span);
            (own.map(Spanned::into_inner).unwrap_or_default().or(shared), span)
        };
        let ((down, down_span), (up, up_span)) = (resolve(down), resolve(up));
        let delay = |direction: &DirectionText, span: &Range<usize>| {
            direction.delay.map(|delay| delay.0).ok_or_else(|| {
                self.error(
                    span.clone(),
                    "the delay is missing: give the path an `rtt` or both directions a `delay`",
                )
            })
        };
        let (down_delay, up_delay) = (delay(&down, &down_span)?, delay(&up, &up_span)?);
        let rtt = down_delay + up_delay;
        Ok(LinkSpec {
            up: self.direction(&up, up_delay, rtt, up_span)?,
            down: self.direction(&down, down_delay, rtt, down_span)?,
        })
    }

    fn direction(
        &self,
        direction: &DirectionText,
        delay: Duration,
        rtt: Duration,
        span: Range<usize>,
    ) -> Result<LinkConfig, ScenarioError> {
        let capacity = match (direction.rate, &direction.trace) {
            (Some(RateText::Unlimited), None) => Capacity::Unlimited,
            (Some(RateText::Limited(rate)), None) => Capacity::Rate(rate),
            (None, Some(trace)) => self.trace(trace)?,
            (None, None) => return Err(self.error(span, "the `rate` (or `trace`) is missing")),
            (Some(_), Some(trace)) => {
                return Err(self.error(trace.span(), "a direction has a `rate` or a `trace`, not both"));
            }
        };
        let mean_rate = capacity.mean_rate();
        let queue_bytes = match (&direction.queue, mean_rate) {
            (None, Some(rate)) => default_queue(rate, rtt),
            (None, None) => u64::MAX,
            (Some(queue), rate) => {
                let bytes = match (queue.as_ref(), rate) {
                    (QueueText::Bytes(bytes), _) => *bytes,
                    (QueueText::BandwidthDelayProducts(count), Some(rate)) => {
                        (rate.bytes_in(rtt) as f64 * count) as u64
                    }
                    (QueueText::BandwidthDelayProducts(_), None) => {
                        return Err(
                            self.error(queue.span(), "an unlimited link has no BDP: give the queue in bytes")
                        );
                    }
                };
                if bytes < FULL_PACKET_BYTES {
                    return Err(self.error(
                        queue.span(),
                        format!("a queue of {bytes} bytes lets no full packet of {FULL_PACKET_BYTES} bytes through"),
                    ));
                }
                bytes
            }
        };
        Ok(LinkConfig {
            capacity,
            delay,
            jitter: direction.jitter.map_or(Duration::ZERO, |jitter| jitter.0),
            loss: direction.loss.map_or(Loss::None, |loss| loss.0),
            queue_bytes,
            schedule: Vec::new(),
        })
    }

    fn trace(&self, name: &Spanned<String>) -> Result<Capacity, ScenarioError> {
        let error = |reason: String| {
            self.error(name.span(), format!("the trace `{}` cannot be used: {reason}", name.as_ref()))
        };
        let text = (self.read_trace)(name.as_ref()).map_err(|reason| error(reason.to_string()))?;
        let trace = Trace::parse(&text).map_err(|reason| error(reason.to_string()))?;
        Ok(Capacity::Trace(Arc::new(trace)))
    }

    fn change(&self, change: &Spanned<ChangeText>, link: &mut LinkSpec) -> Result<(), ScenarioError> {
        let ChangeText { at, direction, rate, delay, jitter, loss, queue, blackhole, carrier } =
            change.as_ref();
        let changes: Vec<Change> = [
            rate.map(|rate| {
                Change::Capacity(match rate {
                    RateText::Unlimited => Capacity::Unlimited,
                    RateText::Limited(rate) => Capacity::Rate(rate),
                })
            }),
            delay.map(|delay| Change::Delay(delay.0)),
            jitter.map(|jitter| Change::Jitter(jitter.0)),
            loss.map(|loss| Change::Loss(loss.0)),
            queue.map(|queue| Change::Queue(queue.0)),
            blackhole.map(Change::Blackhole),
            carrier.map(Change::Carrier),
        ]
        .into_iter()
        .flatten()
        .collect();
        if changes.is_empty() {
            return Err(self.error(
                change.span(),
                "this change changes nothing: give a rate, delay, jitter, loss, queue, blackhole or carrier",
            ));
        }
        if carrier.is_some() && *direction != DirectionName::Both {
            return Err(
                self.error(change.span(), "a carrier is lost in both directions: leave `direction` out")
            );
        }
        for change in changes {
            if *direction != DirectionName::Down {
                link.up.schedule.push((at.0, change.clone()));
            }
            if *direction != DirectionName::Up {
                link.down.schedule.push((at.0, change));
            }
        }
        Ok(())
    }

    fn server(&self, server: ServerText, paths: &[PathSpec]) -> Result<ServerSpec, ScenarioError> {
        for path in &server.paths {
            if !paths.iter().any(|known| known.interface == *path.as_ref()) {
                let known: Vec<&str> = paths.iter().map(|path| path.interface.as_str()).collect();
                return Err(self.error(
                    path.span(),
                    format!("no path has the interface `{}`; there are {}", path.as_ref(), known.join(", ")),
                ));
            }
        }
        let mut files = Vec::new();
        for file in server.files {
            let name = file.name.as_ref();
            if name.is_empty() || name.starts_with('.') || name.contains('/') {
                return Err(self.error(file.name.span(), format!("`{name}` is no plain file name")));
            }
            files.push(FileSpec { name: name.clone(), bytes: file.size.0 });
        }
        let link = match (server.rtt, server.rate) {
            (None, None) => None,
            (rtt, rate) => {
                let rtt = rtt.map_or(Duration::ZERO, |rtt| rtt.0);
                Some(match rate {
                    Some(RateText::Limited(rate)) => LinkSpec::symmetric(rate, rtt),
                    Some(RateText::Unlimited) | None => LinkSpec::unlimited(rtt),
                })
            }
        };
        Ok(ServerSpec {
            name: server.name.into_inner(),
            dns_names: server.names,
            paths: server.paths.into_iter().map(Spanned::into_inner).collect(),
            link,
            files,
        })
    }
}

impl DirectionText {
    /// What this direction says for itself, else what the path says for both.
    fn or(self, shared: &Self) -> Self {
        let has_capacity = self.rate.is_some() || self.trace.is_some();
        let (rate, trace) =
            if has_capacity { (self.rate, self.trace) } else { (shared.rate, shared.trace.clone()) };
        Self {
            rate,
            trace,
            delay: self.delay.or(shared.delay),
            jitter: self.jitter.or(shared.jitter),
            loss: self.loss.or(shared.loss),
            queue: self.queue.or_else(|| shared.queue.clone()),
        }
    }
}
