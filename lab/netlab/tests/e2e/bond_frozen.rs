//! A relay whose machine accepts connections and whose process does nothing.

use anyhow::{Context, Result, ensure};
use multiway_netlab::skip_without_lab;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bond_world::BondWorld;

#[test]
fn new_connections_go_without_a_relay_that_hangs_and_through_it_when_it_goes_on() -> Result<()> {
    skip_without_lab!();
    let mut bond = BondWorld::joined()?;
    let process = Pid::from_raw(i32::try_from(bond.relay.process().child().id())?);
    kill(process, Signal::SIGSTOP)?;
    let who = bond.who().with_context(|| bond.world.daemon_log())?;
    ensure!(!bond.relay.is(who), "the relay hangs");
    let relay = bond.world.status()?.relays.remove(0);
    ensure!(!relay.reachable && relay.reason.is_some(), "{relay:?}");
    kill(process, Signal::SIGCONT)?;
    bond.wait_until_bonded()
}
