//! What Multiway asks of the Linux kernel.
//!
//! Kernel facts stop here and become the value types of `multiway-core`; nothing here decides, and
//! nothing here knows the asynchronous runtime. Everything works in the network namespace of the
//! calling thread.
//!
//! - [`watch`]: interfaces, addresses and routes, now and as they change.
//! - [`socket`]: sockets bound to one path; [`diagnose()`]: why they may not work.
//! - [`tcp_info`]: what the kernel measured of a connection; [`splice`]: bytes between two of them
//!   that are not copied.
//! - [`intercept`]: the nftables table that hands chosen programs' connections to the proxy, and
//!   [`original_dst`]: where they were going.
//! - [`cgroup`]: a control group per run, so that one program can be chosen; [`reaper`]: removes
//!   them when the daemon dies.
//! - [`addresses`]: those of this host.
//! - [`process`], [`pidfd`], [`accounts`], [`privilege`], [`limits`], [`memory`], [`clock`]: whose a
//!   connection is, who users are by name, what this process may do and how much, what it occupies,
//!   and what time it is.

pub mod accounts;
pub mod addresses;
pub mod cgroup;
pub mod clock;
pub mod diagnose;
pub mod intercept;
pub mod limits;
pub mod memory;
mod netlink;
pub mod original_dst;
pub mod pidfd;
pub mod privilege;
pub mod process;
pub mod reaper;
pub mod socket;
pub mod splice;
pub mod subflow;
pub mod tcp_info;
pub mod watch;

pub use diagnose::{Missing, diagnose};
