use super::*;

fn fault_of(text: &str) -> Fault {
    parse(text).expect_err("the text is wrong")
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn the_packaged_example_shows_every_key_at_its_default() {
    let example = include_str!("../../../packaging/multiway.toml");
    assert_eq!(parse(example).unwrap(), Config::default());
    // Every commented line `#key = value` is a key that exists.
    let mut all = String::new();
    for line in example.lines() {
        let shown = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && !rest.is_empty());
        all.push_str(shown.unwrap_or(line));
        all.push('\n');
    }
    let config = parse(&all).unwrap_or_else(|fault| panic!("{fault:?}\n{all}"));
    assert!(config.features.is_some() && config.history.is_some() && config.control.group.is_some());
    assert_eq!(config.paths.overrides["wwan0"].metered, Some(true));
    assert!(config.paths.portal_probe.is_some());
}

#[test]
fn an_unknown_key_is_named_with_line_and_column() {
    let fault = fault_of("listen = \"127.0.0.1:1\"\n\n[paths]\nalow = [\"wlan0\"]\n");
    assert_eq!((fault.line, fault.column), (4, 1), "{}", fault.message);
    assert!(fault.message.contains("alow") && fault.message.contains("allow"), "{}", fault.message);
}

#[test]
fn a_bad_value_is_named_with_line_and_column() {
    for (text, line, column, says) in [
        ("\nlisten = \"nowhere\"", 2, 10, "socket address"),
        ("preference = \"cheap\"", 1, 14, "thrifty"),
        ("[buffers]\nflow_mib = 0", 2, 12, "MiB"),
        ("[buffers]\nflow_mib = 8\ntotal_mib = 4", 3, 13, "less than one"),
        ("[paths]\nallow = [\"wlan0\", \"a/b\"]", 2, 19, "a/b"),
        ("[paths]\nallow = [\"x\"]\ndeny = [\"x\"]", 3, 9, "both"),
        ("[paths.override.wwan0]\nkind = \"5g\"", 2, 8, "cellular"),
        ("[intercept]\nusers = [\"a\",\n -1]", 3, 2, "name nor a number"),
        ("[paths]\nportal_probe = \"https://a.example/\"", 2, 16, "http://HOST"),
        ("[dns]\nupstreams = [\n\n \"1.2.3\"]", 4, 2, "1.2.3"),
        ("[intercept]\ncgroups = [\"a/../b\"]", 2, 12, "a/../b"),
        ("é = 1", 1, 1, ""),
        ("x = \"é\" y", 1, 9, ""),
    ] {
        let fault = fault_of(text);
        assert_eq!((fault.line, fault.column), (line, column), "{text}: {}", fault.message);
        assert!(fault.message.contains(says), "{text}: {}", fault.message);
    }
}

#[test]
fn a_denied_interface_is_not_permitted_and_an_allow_list_is_exclusive() {
    let permission = parse("[paths]\nallow = [\"wlan*\"]").unwrap().paths.permission;
    assert!(permission.allows("wlan0") && !permission.allows("wwan0"));
    let permission = parse("[paths]\ndeny = [\"wlan0\"]").unwrap().paths.permission;
    assert!(!permission.allows("wlan0") && permission.allows("wwan0"));
}

#[test]
fn the_tolerance_belongs_to_the_thrifty_preference() {
    let config = parse("tolerance_ms = 250").unwrap();
    let tolerance = std::time::Duration::from_millis(250);
    assert_eq!(config.preference, Preference::Thrifty { tolerance });
    assert_eq!(parse("preference = \"fast\"").unwrap().preference, Preference::Fast);
}

#[test]
fn users_are_given_by_name_or_by_number() {
    let config = parse("[intercept]\nusers = [\"alice\", 1001]").unwrap();
    assert_eq!(config.intercept.users, ["alice", "1001"]);
}

#[test]
fn the_oracle_is_told_what_to_compute_with() {
    let config = parse("[bond.oracle]\nperiod_ms = 100\nloss_percent = 10").unwrap();
    let oracle = config.bond.oracle;
    assert_eq!((oracle.period.as_millis(), oracle.loss_ppm), (100, 100_000));
    assert_eq!(oracle.timeout, Config::default().bond.oracle.timeout);
    for text in ["period_ms = 0", "loss_percent = 0", "loss_percent = 101"] {
        assert_eq!(fault_of(&format!("[bond.oracle]\n{text}")).line, 2, "{text}");
    }
}
