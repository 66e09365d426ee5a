//! Version 2 control groups: where they are, and one for each `multiway run`.
//!
//! A run's group is made below the group its program is in already, so that limits, accounting and
//! the session it belongs to stay as they are.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

/// Beginning of the names of all groups made here.
pub const RUN_PREFIX: &str = "multiway-run-";

/// How often emptying a group is tried again: programs fork, and a process that was killed stays
/// in its group until the kernel has taken it apart.
const REMOVE_ATTEMPTS: u32 = 200;

/// Wait between the attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// A version 2 control group of one `multiway run`.
///
/// It outlives this value: [`RunGroup::remove_if_empty`] ends it, or the [`crate::reaper`] when
/// the daemon dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunGroup {
    /// As in `/proc/PID/cgroup`.
    name: String,
    directory: PathBuf,
}

impl RunGroup {
    /// Makes the group `multiway-run-ID` below the group that process `pid` is in, or finds it.
    ///
    /// The process is not moved yet.
    pub fn create(id: &str, pid: u32) -> io::Result<Self> {
        if id.is_empty() || !id.chars().all(|char| char.is_ascii_alphanumeric() || char == '-') {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("a run is named by letters, digits and hyphens, not by {id:?}"),
            ));
        }
        let memberships = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let current = version2_group_in(&memberships).ok_or_else(|| {
            io::Error::new(ErrorKind::Unsupported, "the process is in no version 2 control group")
        })?;
        // A run started by another run's program becomes its sibling: a program is in one run.
        let parent = current.split(&format!("/{RUN_PREFIX}")).next().unwrap_or_default();
        let group = Self::named(&format!("{}/{RUN_PREFIX}{id}", parent.trim_end_matches('/')))?;
        match fs::create_dir(&group.directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(io::Error::new(
                error.kind(),
                format!("control group {} cannot be made: {error}", group.directory.display()),
            )),
            _ => Ok(group),
        }
    }

    /// The group of this name, as [`RunGroup::name`] gave it; refuses groups not made here.
    pub fn named(name: &str) -> io::Result<Self> {
        let mut parts = name.trim_matches('/').split('/');
        let is_ours = parts.next_back().is_some_and(|last| last.starts_with(RUN_PREFIX));
        if !is_ours || parts.any(|part| part.is_empty() || part == "..") {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{name:?} is no run's control group"),
            ));
        }
        let directory = mount_point()?.join(name.trim_start_matches('/'));
        Ok(Self { name: name.to_owned(), directory })
    }

    /// The name by which [`crate::intercept::InterceptPlan::cgroups`] knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves a process in; its connections from now on belong to the group, and so do its children.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        move_process(pid, &self.directory)
    }

    /// True when no process is in it or below it; also when it is gone.
    pub fn is_empty(&self) -> io::Result<bool> {
        let events = match fs::read_to_string(self.directory.join("cgroup.events")) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            events => events?,
        };
        Ok(events.lines().any(|line| line == "populated 0"))
    }

    /// Removes the group when no process is in it; true when it is gone.
    pub fn remove_if_empty(&self) -> io::Result<bool> {
        if !self.is_empty()? {
            return Ok(false);
        }
        for directory in descendants_last_first(&self.directory)? {
            match fs::remove_dir(&directory) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => return Ok(false),
                result => result?,
            }
        }
        Ok(true)
    }

    /// Moves all processes out to the group above and removes the group.
    pub fn evacuate_and_remove(&self) -> io::Result<()> {
        let parent = self.directory.parent().ok_or(ErrorKind::InvalidInput)?;
        for _ in 0..REMOVE_ATTEMPTS {
            for directory in descendants_last_first(&self.directory)? {
                for pid in processes_in(&directory)? {
                    move_process(pid, parent)?;
                }
            }
            if self.remove_if_empty()? {
                return Ok(());
            }
            std::thread::sleep(REMOVE_PAUSE);
        }
        Err(io::Error::new(
            ErrorKind::TimedOut,
            format!("control group {} still holds processes", self.directory.display()),
        ))
    }
}

/// All runs' groups on this host, of whatever daemon.
pub fn leftover() -> io::Result<Vec<RunGroup>> {
    let mount = mount_point()?;
    let mut groups = Vec::new();
    for directory in descendants_last_first(&mount)? {
        let is_ours = directory
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(RUN_PREFIX));
        if let (true, Ok(relative)) = (is_ours, directory.strip_prefix(&mount)) {
            let name = format!("/{}", relative.display());
            groups.push(RunGroup { name, directory });
        }
    }
    Ok(groups)
}

/// A process that ended meanwhile needs no move.
fn move_process(pid: u32, directory: &Path) -> io::Result<()> {
    match fs::write(directory.join("cgroup.procs"), pid.to_string()) {
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(()),
        result => result,
    }
}

fn processes_in(directory: &Path) -> io::Result<Vec<u32>> {
    match fs::read_to_string(directory.join("cgroup.procs")) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        list => Ok(list?.lines().filter_map(|line| line.parse().ok()).collect()),
    }
}

/// The directory and all below it, each before those above it; nothing when it is gone.
fn descendants_last_first(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([directory.to_owned()]);
    while let Some(directory) = queue.pop_front() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                queue.push_back(entry.path());
            }
        }
        found.push(directory);
    }
    found.reverse();
    Ok(found)
}

/// The version 2 line of `/proc/PID/cgroup` (cgroups(7)): hierarchy 0 without controllers.
fn version2_group_in(memberships: &str) -> Option<&str> {
    memberships.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where version 2 control groups are mounted: `/sys/fs/cgroup`, or below it on hosts that still
/// mount version 1 controllers.
pub fn mount_point() -> io::Result<PathBuf> {
    mount_points_in(&fs::read_to_string("/proc/self/mountinfo")?)
        // A mount may be hidden by another one above it.
        .find(|mount| mount.join("cgroup.controllers").exists())
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no cgroup2 file system is mounted"))
}

/// Finds the mounts in `mountinfo` (proc(5)): fields, a lone hyphen, then the file system's type.
fn mount_points_in(mountinfo: &str) -> impl Iterator<Item = PathBuf> + '_ {
    mountinfo.lines().filter_map(|line| {
        let (fields, filesystem) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        // A mount of a part of the hierarchy would give wrong levels.
        (filesystem.starts_with("cgroup2 ") && root == "/").then(|| Path::new(mount).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_on_unified_and_hybrid_hosts() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let part = "30 23 0:26 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_points_in(unified).collect::<Vec<_>>(), [Path::new("/sys/fs/cgroup")]);
        assert_eq!(mount_points_in(hybrid).collect::<Vec<_>>(), [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(mount_points_in(part).next(), None);
    }

    #[test]
    fn the_version_2_membership_is_the_one_without_controllers() {
        let hybrid = "3:cpu:/\n1:name=systemd:/user.slice\n0::/user.slice/session-2.scope\n";
        assert_eq!(version2_group_in(hybrid), Some("/user.slice/session-2.scope"));
        assert_eq!(version2_group_in("1:name=systemd:/\n"), None);
    }

    #[test]
    fn only_groups_of_runs_can_be_named() {
        for name in ["/user.slice", "/a/../multiway-run-1", "//multiway-run-1/x", ""] {
            assert_eq!(RunGroup::named(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
        }
        for id in ["", "a/b", "..", "a b"] {
            assert_eq!(RunGroup::create(id, 1).unwrap_err().kind(), ErrorKind::InvalidInput, "{id}");
        }
    }
}
