//! Kernel Multipath TCP, so that peers can be measured beside Multiway.

use anyhow::{Context, Result};

use crate::host::Host;
use crate::network::NetworkPath;

/// More subflows than any scenario has paths; the kernel's bound (MPTCP_PM_ADDR_MAX).
const MOST_SUBFLOWS: u8 = 8;

/// Lets programs on the device open Multipath TCP connections (curl under `mptcpize run`) that use all
/// of the paths.
pub(crate) fn enable_on_device(device: &Host, paths: &[NetworkPath]) -> Result<()> {
    enable(device)?;
    for path in paths {
        device.ip(&format!(
            "mptcp endpoint add {} dev {} subflow",
            path.device_address(),
            path.interface()
        ))?;
    }
    Ok(())
}

/// Lets programs on a server accept them (nginx under `mptcpize run`).
pub(crate) fn enable_on_server(server: &Host) -> Result<()> {
    enable(server)
}

fn enable(host: &Host) -> Result<()> {
    host.sysctl("net.mptcp.enabled", "1").context("this kernel has no Multipath TCP")?;
    host.ip(&format!("mptcp limits set subflow {MOST_SUBFLOWS} add_addr_accepted {MOST_SUBFLOWS}")).map(drop)
}
