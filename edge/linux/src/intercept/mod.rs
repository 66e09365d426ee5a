//! Hands the connections of chosen programs to the proxy, for as long as this process lives.
//!
//! One nftables table, owned by this process's netlink socket: if the process ends, even by
//! `kill -9`, the kernel removes the table and programs are on the plain network again.

mod cgroup_path;
mod libnftables;
mod plan;

use std::io;

pub use self::plan::{InterceptPlan, TABLE};

use self::cgroup_path::CgroupMatch;
use self::libnftables::Nftables;
use crate::privilege::Privileges;

/// Why connections could not be intercepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterceptError {
    /// libnftables is not installed or too old.
    #[error("libnftables cannot be loaded ({source}); install it (Debian: apt install libnftables1)")]
    NoLibrary {
        /// What the loader said.
        source: libloading::Error,
    },
    /// libnftables gave no context.
    #[error("libnftables cannot open a netlink socket for nftables; is the kernel built with nf_tables?")]
    NoContext,
    /// No thread with files of its own could be made for libnftables.
    #[error("libnftables cannot be kept from child processes, which would keep its rules: {source}")]
    NotIsolated {
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not change the firewall.
    #[error("interception needs CAP_NET_ADMIN; run as root, or give the binary the capability")]
    NotPermitted,
    /// Another process holds the table.
    #[error(
        "the nftables table inet {TABLE} belongs to another process; stop the other multiway daemon of this \
         network namespace"
    )]
    OwnedByAnother,
    /// A table of our name is there that no process owns.
    #[error("an nftables table of this name is there already; run: nft delete table inet {TABLE}")]
    Leftover,
    /// A control group to match is not there.
    #[error("control group {cgroup} does not exist or cannot be matched; create it first")]
    Cgroup {
        /// The name that was given.
        cgroup: String,
    },
    /// The host has no version 2 control groups.
    #[error("programs cannot be told apart by control group here: {source}")]
    NoCgroups {
        /// What was looked for in vain.
        source: io::Error,
    },
    /// The kernel cannot match sockets by control group.
    #[error("the kernel cannot match sockets by control group (CONFIG_NFT_SOCKET, CONFIG_CGROUPS): {reason}")]
    CgroupMatchUnsupported {
        /// What libnftables said.
        reason: String,
    },
    /// nftables refused the rules.
    #[error("nftables refused the rules: {reason}")]
    Refused {
        /// What libnftables said.
        reason: String,
    },
}

/// Interception in force; it ends when this is dropped or the process ends.
pub struct Intercept {
    nftables: Nftables,
}

impl Intercept {
    /// Puts `plan` in force in the network namespace of the calling thread.
    pub fn install(plan: &InterceptPlan) -> Result<Self, InterceptError> {
        // Asked first, because libnftables prints its own complaint about this one.
        if Privileges::of_this_process().is_ok_and(|own| !own.allow_interception()) {
            return Err(InterceptError::NotPermitted);
        }
        let mut intercept = Self { nftables: Nftables::open()? };
        intercept.apply(plan)?;
        Ok(intercept)
    }

    /// Replaces the plan in force, in one step; on failure the former one stays in force.
    ///
    /// Connections that are there already keep the way they have.
    pub fn apply(&mut self, plan: &InterceptPlan) -> Result<(), InterceptError> {
        let cgroups =
            plan.cgroups.iter().map(|name| CgroupMatch::resolve(name)).collect::<Result<Vec<_>, _>>()?;
        let script = plan::script(plan, &cgroups);
        match self.nftables.run(&script) {
            Ok(_) => Ok(()),
            Err(reason) => Err(self.explain(reason, !cgroups.is_empty())),
        }
    }

    /// libnftables reports with errno's words and the line at fault; this gives them meaning.
    fn explain(&mut self, reason: String, has_cgroups: bool) -> InterceptError {
        // The capability is there, so this is about the table.
        if reason.contains("Operation not permitted") {
            return InterceptError::OwnedByAnother;
        }
        // What the kernel says when a table is to change from nobody's to somebody's; but also
        // when it lacks a part of nftables.
        let is_there = |nftables: &mut Nftables| nftables.run(&format!("list table inet {TABLE}")).is_ok();
        if reason.contains("Operation not supported") && is_there(&mut self.nftables) {
            return InterceptError::Leftover;
        }
        if has_cgroups && reason.contains("socket cgroupv2") {
            return InterceptError::CgroupMatchUnsupported { reason };
        }
        InterceptError::Refused { reason }
    }
}

/// Keeps address translation going for connections that are handed over already, while it lives.
///
/// The kernel translates as long as there is any chain for it. When the daemon's table was the only
/// one and goes, the ends of the daemon's connections no longer reach the programs, which then wait
/// for ever. Whoever outlives the daemon by a moment holds this: a table of its own, with no rules.
pub struct TranslationHold {
    _nftables: Nftables,
}

impl TranslationHold {
    /// Takes hold in the network namespace of the calling thread.
    pub fn take() -> Result<Self, InterceptError> {
        let mut nftables = Nftables::open()?;
        let script = plan::hold_script(std::process::id());
        nftables.run(&script).map_err(|reason| InterceptError::Refused { reason })?;
        Ok(Self { _nftables: nftables })
    }
}

impl std::fmt::Debug for TranslationHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TranslationHold").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Intercept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intercept").finish_non_exhaustive()
    }
}
