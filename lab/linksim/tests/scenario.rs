//! The scenario file is read as written, and what is wrong in it is named by line.

use std::time::Duration;

use multiway_core::paths::PathKind;
use multiway_linksim::{Capacity, Change, Loss, Scenario, ScenarioError, mbit};

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, &|name| match name {
        "lte.down" => Ok("1\n2\n3\n".to_owned()),
        "broken.down" => Ok("3\n2\n".to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    })
}

const WHOLE: &str = r#"
name = "everything"
seed = 9

[[path]]
interface = "wlan0"
kind = "wifi"
rate = "20 Mbit/s"
rtt = "30 ms"
up = { rate = "5 Mbit/s", loss = "1%", delay = "10 ms" }
down = { queue = "2 BDP", loss = { good_to_bad = 0.01, bad_to_good = "20%", loss_in_bad = 0.5 } }

[[path.change]]
at = "2 s"
carrier = false

[[path.change]]
at = "700 ms"
direction = "down"
blackhole = true

[[path]]
interface = "wwan0"
kind = "cellular"
trace = "lte.down"
rtt = "60 ms"
nat = true

[[server]]
name = "origin"
names = ["files.example"]
files = [{ name = "10MB.bin", size = "10 MB" }]

[[server]]
name = "cache"
paths = ["wwan0"]
rtt = "5 ms"
"#;

#[test]
fn a_scenario_says_everything_once() {
    let scenario = parse(WHOLE).expect("a scenario");
    assert_eq!((scenario.seed, scenario.congestion_control.as_str()), (9, "cubic"));

    let wlan0 = &scenario.paths[0];
    assert_eq!((wlan0.kind, wlan0.metric, wlan0.nat), (PathKind::Wifi, 100, false));
    assert_eq!(wlan0.link.up.capacity, Capacity::Rate(mbit(5)));
    assert_eq!(wlan0.link.down.capacity, Capacity::Rate(mbit(20)));
    assert_eq!(wlan0.link.rtt(), Duration::from_millis(25));
    assert_eq!(wlan0.link.down.queue_bytes, 125_000);
    assert_eq!(wlan0.link.up.loss, Loss::bernoulli(0.01).expect("a probability"));
    assert_eq!(
        wlan0.link.down.schedule,
        [
            (Duration::from_millis(700), Change::Blackhole(true)),
            (Duration::from_secs(2), Change::Carrier(false))
        ]
    );
    assert_eq!(wlan0.link.up.schedule, [(Duration::from_secs(2), Change::Carrier(false))]);

    let wwan0 = &scenario.paths[1];
    assert_eq!((wwan0.metric, wwan0.nat), (200, true));
    assert!(matches!(wwan0.link.down.capacity, Capacity::Trace(_)));

    assert_eq!(scenario.servers[0].files[0].bytes, 10_000_000);
    assert_eq!(scenario.servers[1].paths, ["wwan0"]);
    assert_eq!(scenario.servers[1].link.as_ref().map(|link| link.rtt()), Some(Duration::from_millis(5)));
}

#[test]
fn what_is_wrong_is_named_by_line() {
    for (from, to, line, says) in [
        ("\"20 Mbit/s\"", "\"20 Mbit\"", 8, "is not a rate"),
        ("rtt = \"30 ms\"", "rtt = 30", 9, "string"),
        ("\"2 BDP\"", "\"100 B\"", 11, "lets no full packet"),
        ("loss_in_bad = 0.5", "loss_in_bad = 1.5", 11, "no probability"),
        ("at = \"2 s\"", "att = \"2 s\"", 14, "unknown field `att`"),
        ("blackhole = true", "", 17, "changes nothing"),
        ("carrier = false", "carrier = false\ndirection = \"up\"", 13, "both directions"),
        ("interface = \"wwan0\"", "interface = \"wlan0\"", 23, "two paths"),
        ("interface = \"wwan0\"", "interface = \"a name too long for linux\"", 23, "no interface name"),
        ("\"lte.down\"", "\"broken.down\"", 25, "goes back in time"),
        ("\"lte.down\"", "\"missing.down\"", 25, "cannot be used"),
        ("trace = \"lte.down\"", "", 23, "`rate` (or `trace`) is missing"),
        ("rtt = \"60 ms\"", "", 23, "delay is missing"),
        ("\"10MB.bin\"", "\"../etc/passwd\"", 32, "no plain file name"),
        ("paths = [\"wwan0\"]", "paths = [\"eth7\"]", 36, "there are wlan0, wwan0"),
    ] {
        let text = WHOLE.replacen(from, to, 1);
        assert_ne!(text, WHOLE, "{from} stands in the scenario");
        let error = parse(&text).expect_err(to);
        assert_eq!(error.at.map(|(line, _)| line), Some(line), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Scenario::load(std::path::Path::new("no/such.toml")).expect_err("there is no such file");
    assert!(error.to_string().starts_with("no/such.toml: "), "{error}");
}
