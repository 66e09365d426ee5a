//! How nftables is told of a version 2 control group.

use std::path::{Path, PathBuf};

use super::InterceptError;
use crate::cgroup;

/// A control group in the words of `socket cgroupv2 level N "PATH"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupMatch {
    /// Depth below the root group.
    pub(super) level: usize,
    /// Path relative to the place where libnftables takes version 2 groups to be mounted.
    pub(super) path_for_nftables: String,
}

/// Where libnftables looks up groups, whatever is mounted there (its `cgroupv2` data type).
const LIBNFTABLES_ROOT: &str = "/sys/fs/cgroup";

impl CgroupMatch {
    /// Resolves a group as `/proc/PID/cgroup` names it.
    pub(super) fn resolve(name: &str) -> Result<Self, InterceptError> {
        let mount = cgroup::mount_point().map_err(|source| InterceptError::NoCgroups { source })?;
        Self::resolve_at(&mount, name)
    }

    fn resolve_at(mount: &Path, name: &str) -> Result<Self, InterceptError> {
        let unusable = || InterceptError::Cgroup { cgroup: name.to_owned() };
        let relative = name.trim_matches('/');
        let parts: Vec<&str> = relative.split('/').collect();
        let is_plain = |part: &&str| {
            !part.is_empty() && *part != "." && *part != ".." && !part.contains(['"', '\\', '\n', '*'])
        };
        if !parts.iter().all(is_plain) || !mount.join(relative).is_dir() {
            return Err(unusable());
        }
        let path = below_libnftables_root(mount).ok_or_else(unusable)?.join(relative);
        Ok(Self { level: parts.len(), path_for_nftables: path.to_str().ok_or_else(unusable)?.to_owned() })
    }
}

/// The mount point relative to [`LIBNFTABLES_ROOT`].
///
/// Hosts that still mount version 1 controllers have version 2 elsewhere, mostly under `unified`.
/// libnftables joins the given path to its root and asks for the inode of what it finds, so a path
/// that leads from its root to the real mount gives the right group.
fn below_libnftables_root(mount: &Path) -> Option<PathBuf> {
    let root = Path::new(LIBNFTABLES_ROOT);
    if let Ok(below) = mount.strip_prefix(root) {
        return Some(below.to_owned());
    }
    let up: PathBuf = root.components().skip(1).map(|_| "..").collect();
    Some(up.join(mount.strip_prefix("/").ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_leads_from_where_libnftables_looks_to_where_groups_are_mounted() {
        for (mount, path) in [
            ("/sys/fs/cgroup", ""),
            ("/sys/fs/cgroup/unified", "unified"),
            ("/run/groups", "../../../run/groups"),
        ] {
            assert_eq!(below_libnftables_root(Path::new(mount)), Some(PathBuf::from(path)), "{mount}");
        }
    }

    #[test]
    fn the_level_is_the_depth_below_the_root_group() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(mount.path().join("user.slice/app")).unwrap();
        let group = CgroupMatch::resolve_at(mount.path(), "/user.slice/app").unwrap();
        assert_eq!(group.level, 2);
        assert!(group.path_for_nftables.ends_with("/user.slice/app"));
    }

    #[test]
    fn a_group_that_is_not_there_or_could_end_the_string_is_refused() {
        let mount = tempfile::tempdir().unwrap();
        for name in ["gone", "", "/", "a\" accept", "..", "a/../b"] {
            let refused = CgroupMatch::resolve_at(mount.path(), name);
            assert!(matches!(refused, Err(InterceptError::Cgroup { .. })), "{name:?}");
        }
    }
}
