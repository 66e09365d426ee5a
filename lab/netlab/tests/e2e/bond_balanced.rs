//! Two relays with the same keys behind one address: HAProxy deals new sessions out, and joins go past it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use multiway_linksim::{LinkSpec, ServerSpec, mbit};
use multiway_netlab::{NetworkOptions, skip_without_lab};

use crate::bond_world::{BondWorld, EXCHANGE_PORT, Ends, Exchange, RELAY_PORT, Relay, scenario};
use crate::support::{PATIENCE, wait_until};

const LONG: Exchange = Exchange { ends: Ends::OriginFirst, up: 1_000_000, down: 3_000_000 };

#[test]
fn joins_reach_the_relay_that_has_the_session() -> Result<()> {
    skip_without_lab!();
    if !std::path::Path::new("/usr/sbin/haproxy").exists() {
        multiway_netlab::say_skipped("haproxy is not installed");
        return Ok(());
    }
    let uplink = || LinkSpec::symmetric(mbit(500), Duration::from_millis(1));
    let scenario = scenario(ServerSpec::new("origin"))
        .server(ServerSpec::new("other").behind(uplink()))
        .server(ServerSpec::new("balancer").behind(uplink()));
    let advertise = |address: SocketAddr| format!("advertise = \"{address}\"\nsession_linger_seconds = 1\n");
    let mut bond = BondWorld::build_with(scenario, |_| Ok(NetworkOptions::default()), "")?;
    bond.relay.kill()?;
    bond.relay.configure(&advertise(bond.relay.address()))?;
    bond.relay.run()?;

    // An operator gives the other one copies of the keys.
    let mut other = Relay::prepare(&bond.world, "other", "")?;
    other.configure(&advertise(other.address()))?;
    fs::create_dir(other.path("state"))?;
    for key in ["identity.pem", "tokens.key"] {
        fs::copy(bond.relay.path("state").join(key), other.path("state").join(key))?;
    }
    other.run()?;

    let balancer = bond.world.network.server("balancer");
    let front = SocketAddr::new(balancer.public_address().into(), RELAY_PORT);
    let file = bond.world.path("haproxy.cfg");
    fs::write(
        &file,
        format!(
            "defaults\n mode tcp\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n\
             frontend front\n bind {front}\n default_backend relays\n\
             backend relays\n balance roundrobin\n server one {}\n server two {}\n",
            bond.relay.address(),
            other.address()
        ),
    )?;
    let mut haproxy = balancer.host().command("/usr/sbin/haproxy");
    haproxy.args(["-db", "-f"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _haproxy = balancer.host().start(haproxy)?;
    balancer.host().wait_for_port(front, PATIENCE).context("HAProxy")?;

    let invite = bond.relay.invite(&["--address", &front.to_string()])?;
    bond.join(&invite)?;
    let through = |who: IpAddr| bond.relay.is(who) || other.is(who);
    // HAProxy gives every new session to the relay whose turn it is.
    let (mut served, mut rounds) = ([false; 2], 0);
    for _ in 0..6 {
        bond.world.start_daemon("", &[])?;
        wait_until("flows through a relay", || bond.who().is_ok_and(through))?;
        // A device that began twice, because the first answer took long, has left the other relay by then.
        let sessions = || Ok::<_, anyhow::Error>((bond.relay.metric("sessions")?, other.metric("sessions")?));
        wait_until("one session in all", || sessions().is_ok_and(|(one, two)| one + two == 1))?;
        let is_first = sessions()?.0 == 1;
        let (has, has_not) = if is_first { (&bond.relay, &other) } else { (&other, &bond.relay) };
        let joined = || has.metric("subflows_begun_total");
        let before = (joined()?, has_not.metric("hellos_refused_total")?);
        // The network is left, and the stream needs a subflow over the other one.
        let stream = bond.socks("files.example", EXCHANGE_PORT)?;
        let wifi = bond.world.network.path("wlan0");
        std::thread::scope(|scope| -> Result<()> {
            let performed = scope.spawn(|| LONG.perform(&stream));
            wait_until("bytes", || has.metric("bytes_to_devices_total").is_ok_and(|bytes| bytes > 100_000))?;
            wifi.disconnect()?;
            performed.join().expect("an exchange does not panic")
        })
        .with_context(|| format!("{}\n{}\n{}", bond.world.daemon_log(), bond.relay.log(), other.log()))?;
        wifi.reconnect()?;
        rounds += 1;
        wait_until("the origin's verdict", || bond.origin.verdicts().len() == rounds)?;
        ensure!(joined()? > before.0, "there was no join");
        ensure!(has_not.metric("hellos_refused_total")? == before.1, "a join went to the wrong relay");
        served[usize::from(is_first)] = true;
        bond.world.daemon().terminate()?;
        wait_until("the session's end", || has.metric("sessions").is_ok_and(|sessions| sessions == 0))?;
        if served == [true; 2] {
            break;
        }
    }
    ensure!(served == [true; 2], "HAProxy used one relay only");
    for (peer, verdict) in bond.origin.verdicts() {
        ensure!(through(peer) && verdict.is_ok(), "{peer}: {verdict:?}");
    }
    Ok(())
}
