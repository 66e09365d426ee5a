//! Whose connections the kernel hands over: those configured, and those of each `multiway run`.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use multiway_api as api;
use multiway_edge::accounts;
use multiway_edge::cgroup::{self, RunGroup};
use multiway_edge::intercept::{Intercept, InterceptError, InterceptPlan};
use multiway_edge::privilege::Privileges;
use multiway_edge::reaper::Reaper;

use super::DaemonError;
use crate::config::InterceptConfig;
use crate::control::{AdoptError, Caller};

/// Firewall mark of the daemon's own sockets, by which interception leaves them alone: "MWAY".
pub(super) const BYPASS_MARK: u32 = 0x4d57_4159;

/// Where intercepted connections go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) transparent: u16,
    pub(super) dns: u16,
}

/// Interception as it is in force, or why it is not.
#[derive(Debug)]
pub(super) struct Interception {
    configured: InterceptConfig,
    /// How to start the process that cleans up after a killed daemon.
    reaper_command: fn() -> Command,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Off { reason: String },
    On(Box<Active>),
}

#[derive(Debug)]
struct Active {
    intercept: Intercept,
    /// Everything but control groups, which come and go.
    base: InterceptPlan,
    /// Configured groups that are there, with the inode by which the kernel matches them.
    configured_groups: BTreeMap<String, u64>,
    runs: Vec<RunGroup>,
    runs_made: u64,
    reaper: Option<Reaper>,
}

impl Interception {
    /// Puts what is configured in force; off when the process may not, unless that was asked for.
    pub(super) fn start(
        configured: InterceptConfig,
        ports: Ports,
        reaper_command: fn() -> Command,
    ) -> Result<Self, DaemonError> {
        if !configured.enabled {
            let reason = "the configuration turns it off".to_owned();
            return Ok(Self { configured, reaper_command, state: Mutex::new(State::Off { reason }) });
        }
        let state = match Active::start(&configured, ports, reaper_command) {
            Ok(active) => State::On(Box::new(active)),
            Err(error @ DaemonError::Intercept(_)) if configured.is_empty() => {
                State::Off { reason: error.to_string() }
            }
            Err(error) => return Err(error),
        };
        Ok(Self { configured, reaper_command, state: Mutex::new(state) })
    }

    /// Why it is off; `None` when it is in force.
    pub(super) fn off_reason(&self) -> Option<String> {
        match &*self.state() {
            State::Off { reason } => Some(reason.clone()),
            State::On(_) => None,
        }
    }

    /// For status.
    pub(super) fn status(&self) -> api::Interception {
        let state = self.state();
        let (reason, runs) = match &*state {
            State::Off { reason } => (Some(reason.clone()), &[][..]),
            State::On(active) => (None, active.runs.as_slice()),
        };
        let mut cgroups = self.configured.cgroups.clone();
        cgroups.extend(runs.iter().map(|run| run.name().to_owned()));
        api::Interception {
            active: reason.is_none(),
            reason,
            users: self.configured.users.clone(),
            groups: self.configured.groups.clone(),
            cgroups,
        }
    }

    /// Puts the caller into a control group of its own that is intercepted; the name of the group,
    /// or why it cannot be intercepted though the proxy would do.
    pub(super) fn adopt(&self, caller: &Caller) -> Result<Result<String, String>, AdoptError> {
        let pid = caller.pid.ok_or(AdoptError::UnknownProcess)?;
        if !caller.still_runs() {
            return Err(AdoptError::Gone { pid });
        }
        match &mut *self.state() {
            State::Off { reason } => Ok(Err(reason.clone())),
            State::On(active) => active.adopt(caller, pid, self.reaper_command),
        }
    }

    /// Takes no further connections; those that were taken are still translated.
    pub(super) fn let_go(&self) {
        if let State::On(active) = &mut *self.state()
            && let Err(error) = active.let_go()
        {
            tracing::warn!(%error, "new connections are caught until the end");
        }
    }

    /// Ends interception, and the control groups with it; their programs live on without it.
    pub(super) fn stop(&self) {
        let stopped = State::Off { reason: "the daemon is stopping".to_owned() };
        // Rules first: the groups they name go with the reaper.
        if let State::On(active) = std::mem::replace(&mut *self.state(), stopped) {
            let Active { intercept, reaper, .. } = *active;
            drop(intercept);
            drop(reaper);
        }
    }

    /// Forgets runs whose programs have all ended, and follows configured groups that were made anew.
    pub(super) fn tidy(&self) {
        if let State::On(active) = &mut *self.state() {
            active.tidy(&self.configured);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Active {
    fn start(
        configured: &InterceptConfig,
        ports: Ports,
        reaper_command: fn() -> Command,
    ) -> Result<Self, DaemonError> {
        let base = InterceptPlan {
            users: configured.users.iter().map(|name| user(name)).collect::<Result<_, _>>()?,
            groups: configured.groups.iter().map(|name| group(name)).collect::<Result<_, _>>()?,
            cgroups: Vec::new(),
            proxy_port: ports.transparent,
            dns_port: Some(ports.dns),
            bypass_mark: BYPASS_MARK,
            excluded: Vec::new(),
        };
        if !Privileges::of_this_process().is_ok_and(Privileges::allow_interception) {
            return Err(InterceptError::NotPermitted.into());
        }
        remove_leftovers();
        let mut plan = base.clone();
        plan.cgroups.clone_from(&configured.cgroups);
        let intercept = Intercept::install(&plan)?;
        let configured_groups = groups_there(&configured.cgroups);
        // Without it programs would wait for ever on connections of a daemon that was killed.
        let reaper = Reaper::spawn(reaper_command())
            .inspect_err(|error| {
                tracing::warn!(%error, "the process that cleans up after a killed daemon cannot be started");
            })
            .ok();
        Ok(Self { intercept, base, configured_groups, runs: Vec::new(), runs_made: 0, reaper })
    }

    fn let_go(&mut self) -> Result<(), InterceptError> {
        self.intercept.apply(&InterceptPlan {
            proxy_port: self.base.proxy_port,
            bypass_mark: self.base.bypass_mark,
            ..InterceptPlan::default()
        })
    }

    fn adopt(
        &mut self,
        caller: &Caller,
        pid: u32,
        reaper_command: fn() -> Command,
    ) -> Result<Result<String, String>, AdoptError> {
        self.runs_made += 1;
        let id = run_id(std::process::id(), self.runs_made);
        let run = match RunGroup::create(&id, pid) {
            Ok(run) => run,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let entered = self.prepare(&run, reaper_command).and_then(|()| {
            // The rules took their time.
            if !caller.still_runs() {
                return Ok(());
            }
            run.add(pid).map_err(|error| format!("process {pid} cannot be moved to {}: {error}", run.name()))
        });
        // The kernel moves by number: whoever ran before and after had it in between.
        let is_gone = !caller.still_runs();
        if is_gone && let Err(error) = run.evacuate_and_remove() {
            tracing::warn!(%error, group = run.name(), "a process that did not ask for it may be intercepted");
        }
        if is_gone || entered.is_err() {
            self.runs.retain(|other| *other != run);
            self.abandon(&run);
        }
        if is_gone { Err(AdoptError::Gone { pid }) } else { Ok(entered.map(|()| run.name().to_owned())) }
    }

    /// Has the connections of whoever will be in the group intercepted.
    fn prepare(&mut self, run: &RunGroup, reaper_command: fn() -> Command) -> Result<(), String> {
        // First of all, so that whatever happens then leaves nothing behind.
        let reaper = match &mut self.reaper {
            Some(reaper) => reaper,
            none => none.insert(Reaper::spawn(reaper_command()).map_err(|error| {
                format!("the process that cleans up after a killed daemon cannot be started: {error}")
            })?),
        };
        reaper.track(run).map_err(|error| format!("the process that cleans up is gone: {error}"))?;
        self.runs.push(run.clone());
        self.apply().map_err(|error| error.to_string())
    }

    fn tidy(&mut self, configured: &InterceptConfig) {
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.runs).into_iter().partition(|run| run.is_empty().unwrap_or(false));
        self.runs = running;
        let groups = groups_there(&configured.cgroups);
        let moved = groups != self.configured_groups;
        self.configured_groups = groups;
        if (moved || !ended.is_empty())
            && let Err(error) = self.apply()
        {
            tracing::warn!(%error, "the interception rules could not be renewed");
        }
        for run in &ended {
            self.abandon(run);
        }
    }

    /// Rules name groups, and groups must exist for that: rules first when a group is to go.
    fn apply(&mut self) -> Result<(), InterceptError> {
        let mut plan = self.base.clone();
        plan.cgroups = self.configured_groups.keys().cloned().collect();
        plan.cgroups.extend(self.runs.iter().map(|run| run.name().to_owned()));
        self.intercept.apply(&plan)
    }

    fn abandon(&mut self, run: &RunGroup) {
        match run.remove_if_empty() {
            Ok(true) => {
                if let Some(reaper) = &mut self.reaper
                    && let Err(error) = reaper.forget(run)
                {
                    tracing::warn!(%error, "the process that cleans up after a killed daemon is gone");
                }
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, group = run.name(), "a control group could not be removed"),
        }
    }
}

/// What a run is called: by who made it, so that others can tell whether the maker is still there.
fn run_id(maker: u32, number: u64) -> String {
    format!("{maker}-{number}")
}

/// The process that made a run's group, by [`run_id`].
fn maker(group_name: &str) -> Option<u32> {
    let (_, id) = group_name.rsplit_once(cgroup::RUN_PREFIX)?;
    id.split_once('-')?.0.parse().ok()
}

fn process_exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Groups of a daemon that was killed together with its reaper.
fn remove_leftovers() {
    let Ok(groups) = cgroup::leftover() else { return };
    // A daemon of another network namespace may be about to move a program into a group that it just made.
    let is_left = |group: &RunGroup| maker(group.name()).is_none_or(|pid| !process_exists(pid));
    for group in groups.iter().filter(|group| is_left(group)) {
        match group.remove_if_empty() {
            Ok(true) => tracing::info!(group = group.name(), "removed what an earlier daemon left behind"),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, group = group.name(), "a leftover stays"),
        }
    }
}

fn groups_there(names: &[String]) -> BTreeMap<String, u64> {
    let Ok(mount) = cgroup::mount_point() else { return BTreeMap::new() };
    names
        .iter()
        .filter_map(|name| {
            let directory = std::fs::metadata(mount.join(name.trim_start_matches('/'))).ok()?;
            Some((name.clone(), directory.ino()))
        })
        .collect()
}

fn user(name: &str) -> Result<u32, DaemonError> {
    let unknown = || DaemonError::UnknownAccount { kind: "user", name: name.to_owned() };
    accounts::user_id(name).ok().flatten().ok_or_else(unknown)
}

fn group(name: &str) -> Result<u32, DaemonError> {
    let unknown = || DaemonError::UnknownAccount { kind: "group", name: name.to_owned() };
    accounts::group_id(name).ok().flatten().ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_tells_who_made_it() {
        let name = format!("/user.slice/{}{}", cgroup::RUN_PREFIX, run_id(4711, 3));
        assert_eq!(maker(&name), Some(4711));
        for foreign in ["/user.slice", "/multiway-run-a", "/multiway-run-7"] {
            assert_eq!(maker(foreign), None, "{foreign}");
        }
        assert!(process_exists(std::process::id()) && !process_exists(u32::MAX));
    }
}
