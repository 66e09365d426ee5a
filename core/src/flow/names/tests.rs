use proptest::prelude::*;

use super::*;

const WIFI: PathId = PathId(1);
const LTE: PathId = PathId(2);
const TTL: Duration = Duration::from_secs(60);

fn name(text: &str) -> HostName {
    HostName::parse(text).expect("a literal of this test")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a literal of this test")
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_origin(Duration::from_secs(seconds))
}

fn found(addresses: &[&str]) -> Outcome {
    Outcome::Addresses(addresses.iter().map(|text| ip(text)).collect())
}

fn learn(memory: &mut NameMemory, text: &str, path: PathId, outcome: Outcome, now: u64) {
    memory.remember(&name(text), Family::V4, path, outcome, TTL, at(now));
}

#[test]
fn each_path_keeps_the_server_nearest_to_it() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "cdn.example.com", WIFI, found(&["203.0.113.1"]), 0);
    learn(&mut memory, "cdn.example.com", LTE, found(&["198.51.100.1"]), 0);
    let cdn = name("cdn.example.com");
    assert!(memory.is_answer(&cdn, ip("203.0.113.1"), at(1)));
    assert_eq!(
        memory.addresses(&cdn, LTE, at(1)),
        Some(vec![ip("198.51.100.1")]),
        "an intercepted Wi-Fi address leads to LTE's own server"
    );
    assert!(!memory.is_answer(&cdn, ip("203.0.113.2"), at(1)));
    assert!(!memory.is_answer(&name("other.example.com"), ip("203.0.113.1"), at(1)));
}

#[test]
fn an_address_leads_to_the_name_asked_for_last() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 0);
    learn(&mut memory, "b.example.com", WIFI, found(&["203.0.113.1"]), 1);
    assert_eq!(memory.name_of(ip("203.0.113.1"), at(2)), Some(&name("b.example.com")));
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 3);
    assert_eq!(memory.name_of(ip("203.0.113.1"), at(4)), Some(&name("a.example.com")));
}

#[test]
fn an_answer_ends_with_its_ttl_and_the_way_back_lingers() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 0);
    assert_eq!(memory.addresses(&name("a.example.com"), WIFI, at(60)), None);
    assert!(memory.name_of(ip("203.0.113.1"), at(61)).is_some());
    assert_eq!(memory.name_of(ip("203.0.113.1"), at(60 + 3600)), None);
}

#[test]
fn a_poisoned_answer_stands_back_behind_a_good_one() {
    for poison in ["0.0.0.0", "127.0.0.1", "10.10.34.35", "100.64.0.1", "169.254.1.1"] {
        let mut memory = NameMemory::new(10);
        learn(&mut memory, "news.example.com", WIFI, found(&[poison]), 0);
        learn(&mut memory, "news.example.com", LTE, found(&["203.0.113.9"]), 0);
        let known = memory.lookup(&name("news.example.com"), Family::V4, WIFI, at(1));
        let known = known.expect("just learned");
        assert_eq!((known.outcome, known.from), (found(&["203.0.113.9"]), LTE));
        let suspicions = memory.suspicions(&name("news.example.com"), at(1));
        assert_eq!(suspicions.len(), 1);
        assert_eq!(suspicions[0].0, WIFI);
    }
}

#[test]
fn a_name_that_only_one_path_denies_is_found() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "a.example.com", WIFI, Outcome::NoSuchName, 0);
    assert_eq!(memory.suspicions(&name("a.example.com"), at(1)), []);
    learn(&mut memory, "a.example.com", LTE, found(&["203.0.113.9"]), 0);
    let suspicions = memory.suspicions(&name("a.example.com"), at(1));
    assert_eq!(suspicions, [(WIFI, Suspicion::DifferingNxdomain)]);
    let addresses = memory.addresses(&name("a.example.com"), WIFI, at(1));
    assert_eq!(addresses, Some(vec![ip("203.0.113.9")]));
}

#[test]
fn private_addresses_are_used_where_no_path_knows_better() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "wiki.example.com", WIFI, found(&["10.0.0.7"]), 0);
    learn(&mut memory, "wiki.example.com", LTE, Outcome::NoSuchName, 0);
    let addresses = memory.addresses(&name("wiki.example.com"), WIFI, at(1));
    assert_eq!(addresses, Some(vec![ip("10.0.0.7")]), "a company's network is no attack");
}

#[test]
fn private_addresses_of_private_names_are_not_suspect() {
    for text in ["printer", "nas.local", "router.home.arpa", "db.internal"] {
        let suspicion = suspicion_of(&name(text), &found(&["192.168.1.5"]));
        assert_eq!(suspicion, None, "{text}");
    }
    let suspicion = suspicion_of(&name("notlocal.com"), &found(&["192.168.1.5"]));
    assert_eq!(suspicion, Some(Suspicion::PrivateAddress(ip("192.168.1.5"))));
}

#[test]
fn mapped_addresses_are_judged_by_what_they_map() {
    let outcome = found(&["::ffff:127.0.0.1"]);
    assert!(matches!(suspicion_of(&name("a.example.com"), &outcome), Some(Suspicion::Bogus(_))));
}

#[test]
fn a_full_memory_forgets_what_was_learned_longest_ago() {
    let mut memory = NameMemory::new(2);
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 0);
    learn(&mut memory, "b.example.com", WIFI, found(&["203.0.113.2"]), 1);
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 2);
    learn(&mut memory, "c.example.com", WIFI, found(&["203.0.113.3"]), 3);
    assert_eq!(memory.len(), 2);
    assert_eq!(memory.name_of(ip("203.0.113.2"), at(4)), None);
    assert!(memory.name_of(ip("203.0.113.1"), at(4)).is_some());
}

#[test]
fn a_path_on_another_network_starts_anew() {
    let mut memory = NameMemory::new(10);
    learn(&mut memory, "a.example.com", WIFI, found(&["203.0.113.1"]), 0);
    learn(&mut memory, "a.example.com", LTE, found(&["203.0.113.2"]), 0);
    memory.forget_path(WIFI);
    assert_eq!(memory.addresses(&name("a.example.com"), WIFI, at(1)), None);
    assert_eq!(memory.name_of(ip("203.0.113.1"), at(1)), None);
    memory.forget_path(LTE);
    assert!(memory.is_empty());
}

#[test]
fn names_are_read_case_and_dot_blind() {
    assert_eq!(name("WWW.Example.COM."), name("www.example.com"));
    for bad in ["", ".", "a..b", "a b", "ex\u{e4}mple.com", &"a".repeat(64), &"a.".repeat(128)] {
        assert!(HostName::parse(bad).is_err(), "{bad:?}");
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Learn { name: u8, path: u32, outcome: Option<Vec<u8>>, ttl: u64 },
    ForgetPath(u32),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let outcome = prop::option::weighted(0.85, prop::collection::vec(0_u8..12, 0..4));
    prop_oneof![
        8 => (0_u8..8, 1_u32..4, outcome, 0_u64..200)
            .prop_map(|(name, path, outcome, ttl)| Operation::Learn { name, path, outcome, ttl }),
        1 => (1_u32..4).prop_map(Operation::ForgetPath),
        2 => (0_u64..5000).prop_map(Operation::Wait),
    ]
}

/// A few good, private and bogus addresses.
fn address(choice: u8) -> IpAddr {
    match choice % 4 {
        0 => IpAddr::from([127, 0, 0, choice]),
        1 => IpAddr::from([10, 0, 0, choice]),
        _ => IpAddr::from([203, 0, 113, choice]),
    }
}

proptest! {
    #[test]
    fn the_memory_stays_bounded_fresh_and_consistent(
        capacity in 1_usize..6,
        operations in prop::collection::vec(operation(), 1..120),
    ) {
        let mut memory = NameMemory::new(capacity);
        let mut now = Timestamp::ZERO;
        let mut last = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Learn { name: id, path, outcome, ttl } => {
                    let host = name(&format!("n{id}.example.com"));
                    let outcome = outcome.map_or(Outcome::NoSuchName, |choices| {
                        Outcome::Addresses(choices.into_iter().map(address).collect())
                    });
                    let ttl = Duration::from_secs(ttl);
                    memory.remember(&host, Family::V4, PathId(path), outcome.clone(), ttl, now);
                    last.insert((host, PathId(path)), (outcome, now + ttl));
                }
                Operation::ForgetPath(path) => {
                    memory.forget_path(PathId(path));
                    last.retain(|(_, of), _| *of != PathId(path));
                }
                Operation::Wait(seconds) => now = now + Duration::from_secs(seconds),
            }
            prop_assert!(memory.len() <= capacity);
            prop_assert_eq!(memory.by_age.len(), memory.entries.len());
            for (address, names) in &memory.names {
                prop_assert!(!names.is_empty() && names.len() <= MAX_NAMES_PER_ADDRESS);
                for host in names {
                    let holds = memory.entries[host].records.values().any(
                        |r| matches!(&r.outcome, Outcome::Addresses(a) if a.contains(address)));
                    prop_assert!(holds, "{} leads to {}, which does not know it", address, host);
                }
            }
            for ((host, path), (outcome, expires)) in &last {
                let Some(known) = memory.lookup(host, Family::V4, *path, now) else { continue };
                prop_assert!(now < *expires, "nothing stale is given out");
                prop_assert!(now < known.expires);
                if known.from == *path {
                    prop_assert_eq!(&known.outcome, outcome);
                }
                let is_suspect = suspicion_of(host, &known.outcome).is_some();
                let others_are_good = last.iter().any(|((h, p), (o, e))| {
                    h == host && now < *e && memory.lookup(h, Family::V4, *p, now).is_some()
                        && matches!(o, Outcome::Addresses(a) if !a.is_empty())
                        && suspicion_of(h, o).is_none()
                });
                prop_assert!(!(is_suspect && others_are_good), "a poisoned answer was preferred");
            }
        }
    }
}
