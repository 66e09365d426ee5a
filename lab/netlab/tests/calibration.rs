//! The lab is what it says: real TCP over an emulated link meets the configured rate and round-trip
//! time within 2%.
//!
//! One test, so that its cases do not disturb each other. A machine busy with other things may spoil a
//! measurement, so each is repeated until it fits, a few times.

#![expect(clippy::print_stdout, reason = "the measured values are what this test is for")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use multiway_core::units::Rate;
use multiway_linksim::{LinkSpec, kbit, mbit};
use multiway_netlab::{Host, Lab, skip_without_lab};

const ATTEMPTS: usize = 4;

const TOLERANCE: f64 = 0.02;

/// Below 25 ms, 2% are less than what waking two programs may take on a busy machine.
const RTT_TOLERANCE: Duration = Duration::from_micros(500);

/// A full packet and the TCP payload in it, after the IPv4 header and the TCP header with timestamps.
const PACKET_BYTES: f64 = 1500.0;
const PAYLOAD_BYTES: f64 = 1448.0;

/// A SYN or SYN-ACK from Linux: IPv4 header and TCP header with 20 bytes of options.
const HANDSHAKE_PACKET_BYTES: u64 = 60;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Here the server says nothing.
const SILENT: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 5000);

/// Here it sends for ever.
const SENDING: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 5001);

struct Case {
    rate: Rate,
    rtt: Duration,
}

#[test]
fn tcp_meets_the_configured_rate_and_round_trip_time() -> Result<()> {
    skip_without_lab!();
    for (rate, rtt_ms) in
        [(kbit(500), 50), (mbit(5), 20), (mbit(20), 150), (mbit(50), 80), (mbit(400), 20), (mbit(400), 50)]
    {
        check(&Case { rate, rtt: Duration::from_millis(rtt_ms) })?;
    }
    Ok(())
}

fn check(case: &Case) -> Result<()> {
    let lab = Lab::new()?;
    let device = lab.host("device")?;
    let server = lab.host("server")?;
    lab.link(&device, "eth0", &server, "eth0", LinkSpec::symmetric(case.rate, case.rtt))?;
    device.ip("addr add 10.0.0.1/24 dev eth0")?;
    server.ip("addr add 10.0.0.2/24 dev eth0")?;
    let (silent, sending) = server.run(|| (TcpListener::bind(SILENT), TcpListener::bind(SENDING)));
    let _silent = silent?;
    let sending = sending?;
    std::thread::spawn(move || send_for_ever(&sending));

    let megabits = case.rate.bits_per_second() as f64 / 1e6;
    let configured_rtt = case.rtt + 2 * case.rate.time_for(HANDSHAKE_PACKET_BYTES);
    let configured_goodput = megabits * PAYLOAD_BYTES / PACKET_BYTES;
    let (mut rtt, mut goodput) = (Duration::ZERO, 0.0);
    for _ in 0..ATTEMPTS {
        rtt = measure_rtt(&device, case)?;
        let allowed = configured_rtt.mul_f64(TOLERANCE).max(RTT_TOLERANCE);
        goodput = measure_goodput(&device, case)?;
        let rtt_fits = rtt.abs_diff(configured_rtt) <= allowed;
        let rate_fits = (goodput / configured_goodput - 1.0).abs() <= TOLERANCE;
        println!(
            "{megabits} Mbit/s, {:?}: measured {goodput:.3} Mbit/s of {configured_goodput:.3} ({:+.2}%), \
             {rtt:.2?} of {configured_rtt:.2?}",
            case.rtt,
            (goodput / configured_goodput - 1.0) * 100.0,
        );
        if rtt_fits && rate_fits {
            return Ok(());
        }
    }
    ensure!(
        false,
        "a link of {megabits} Mbit/s and {:?} gave {goodput:.3} Mbit/s instead of {configured_goodput:.3}, and a \
         round trip of {rtt:?} instead of {configured_rtt:?}",
        case.rtt
    );
    Ok(())
}

/// Sends to whoever connects until they leave.
fn send_for_ever(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        std::thread::spawn(move || {
            let chunk = vec![0; 256 * 1024];
            while stream.write_all(&chunk).is_ok() {}
        });
    }
}

/// The shortest time of a TCP handshake on the idle link: what is more may be the time that a busy machine takes to wake
/// programs, which a link cannot make shorter.
fn measure_rtt(device: &Host, case: &Case) -> Result<Duration> {
    device.run(|| {
        let mut times = Vec::new();
        for _ in 0..9 {
            let start = Instant::now();
            let stream = TcpStream::connect(SILENT).context("the server listens")?;
            times.push(start.elapsed());
            drop(stream);
            // What closes the connection leaves the link before the next one is timed.
            std::thread::sleep(case.rtt);
        }
        times.into_iter().min().context("there were some")
    })
}

/// The goodput of one download in Mbit/s, once it has filled the link: the median over windows of time,
/// so that the recovery from slow start's losses does not count.
fn measure_goodput(device: &Host, case: &Case) -> Result<f64> {
    // Long enough for some 30 packets of the slowest link.
    let window = Duration::from_millis(if case.rate < mbit(2) { 800 } else { 250 });
    let warm_up = window.max(case.rtt * 12);
    device.run(|| {
        let mut stream = TcpStream::connect(SENDING).context("the server listens")?;
        let start = Instant::now();
        let mut buffer = vec![0; 1 << 20];
        let mut rates = Vec::new();
        let mut window_start = None;
        let mut window_bytes = 0_usize;
        while rates.len() < 7 {
            let count = stream.read(&mut buffer)?;
            ensure!(count > 0, "the server sends for ever");
            let now = Instant::now();
            if now.duration_since(start) < warm_up {
                continue;
            }
            // From one arrival to another, so that no part of a packet is counted.
            let Some(began) = window_start else {
                window_start = Some(now);
                continue;
            };
            window_bytes += count;
            let elapsed = now.duration_since(began);
            if elapsed >= window {
                rates.push(window_bytes as f64 * 8.0 / 1e6 / elapsed.as_secs_f64());
                window_start = Some(now);
                window_bytes = 0;
            }
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[rates.len() / 2])
    })
}
