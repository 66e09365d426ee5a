//! What this process may do.

use std::fs;
use std::io;

/// Bits of the capability sets (include/uapi/linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;

/// The effective capabilities that decide which of Multiway's parts work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// `CAP_NET_ADMIN`: interception, marks.
    pub net_admin: bool,
    /// `CAP_NET_RAW`: marks (since Linux 5.17), and binding to a device before Linux 5.7.
    pub net_raw: bool,
    /// `CAP_SYS_ADMIN`: control groups outside the own ones.
    pub sys_admin: bool,
}

impl Privileges {
    /// Reads `/proc/thread-self/status`.
    pub fn of_this_process() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/thread-self/status")?).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/status has no line CapEff")
        })
    }

    /// True when transparent interception can be set up.
    pub fn allow_interception(self) -> bool {
        self.net_admin
    }

    fn parse(status: &str) -> Option<Self> {
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
        let has = |capability: u32| effective & (1 << capability) != 0;
        Some(Self { net_admin: has(CAP_NET_ADMIN), net_raw: has(CAP_NET_RAW), sys_admin: has(CAP_SYS_ADMIN) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read() {
        let status = "Name:\tmultiway\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000003000\nCapBnd:\t0\n";
        assert_eq!(
            Privileges::parse(status),
            Some(Privileges { net_admin: true, net_raw: true, sys_admin: false })
        );
        assert_eq!(Privileges::parse("CapEff:\tnonsense\n"), None);
        assert!(Privileges::of_this_process().is_ok());
    }
}
