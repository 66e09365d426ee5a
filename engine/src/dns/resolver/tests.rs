use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use tokio::task::JoinSet;

use super::*;
use crate::dns::testing::{
    FakeServer, FakeUplinks, Over, Reply, a, aaaa, alias, answer, name, resolver, resolver_over,
};

const WIFI: PathId = PathId(1);
const LTE: PathId = PathId(2);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a literal of this test")
}

#[tokio::test]
async fn each_path_asks_its_own_server() {
    let wifi = FakeServer::with(&[("cdn.example.com", &["203.0.113.1"])]).await;
    let lte = FakeServer::with(&[("cdn.example.com", &["198.51.100.1"])]).await;
    let resolver = resolver(&[&wifi, &lte]);
    assert_eq!(resolver.resolve(WIFI, "cdn.example.com").await, Ok(vec![ip("203.0.113.1")]));
    assert_eq!(resolver.resolve(LTE, "CDN.example.com.").await, Ok(vec![ip("198.51.100.1")]));
    let name = resolver.name_of(ip("198.51.100.1")).expect("just asked for");
    assert_eq!(name.as_str(), "cdn.example.com");
}

#[tokio::test]
async fn an_intercepted_address_leads_to_another_paths_server() {
    let wifi = FakeServer::with(&[("cdn.example.com", &["203.0.113.1"])]).await;
    let lte = FakeServer::with(&[("cdn.example.com", &["198.51.100.1"])]).await;
    let resolver = resolver(&[&wifi, &lte]);
    resolver.resolve(WIFI, "cdn.example.com").await.expect("it exists");
    let name = HostName::parse("cdn.example.com").expect("a literal of this test");
    let siblings = resolver.sibling_addresses(&name, ip("203.0.113.1"), LTE).await;
    assert_eq!(siblings, Some(vec![ip("198.51.100.1")]), "asked for when it was not known yet");
    assert_eq!(resolver.sibling_addresses(&name, ip("192.0.2.200"), LTE).await, None);
}

#[tokio::test]
async fn a_name_with_anothers_address_leads_nobody_elsewhere() {
    let victim = ("bank.example.com", &["203.0.113.1"][..]);
    let wifi = FakeServer::with(&[victim, ("evil.example.net", &["203.0.113.1"])]).await;
    let lte = FakeServer::with(&[victim, ("evil.example.net", &["198.51.100.66"])]).await;
    let resolver = resolver(&[&wifi, &lte]);
    for name in ["bank.example.com", "evil.example.net"] {
        resolver.resolve(WIFI, name).await.expect("it exists");
        resolver.resolve(LTE, name).await.expect("it exists");
    }
    let bank = HostName::parse("bank.example.com").expect("a literal of this test");
    let siblings = resolver.sibling_addresses(&bank, ip("203.0.113.1"), LTE).await;
    assert_eq!(siblings, Some(vec![ip("203.0.113.1")]));
}

#[tokio::test]
async fn both_families_are_asked_for_and_cached() {
    let server = FakeServer::start(|query, _| {
        let asked = &query.queries[0];
        let record = match asked.query_type {
            RecordType::A => a(&asked.name, [203, 0, 113, 1].into()),
            _ => aaaa(&asked.name, "2001:db8::1"),
        };
        vec![answer(query, vec![record]).into()]
    })
    .await;
    let resolver = resolver(&[&server]);
    let expected = Ok(vec![ip("203.0.113.1"), ip("2001:db8::1")]);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, expected);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, expected);
    assert_eq!(server.queries(), 2);
}

#[tokio::test]
async fn many_askers_for_one_name_cause_one_query() {
    let server = FakeServer::start(|query, _| {
        let asked = &query.queries[0];
        let records = match asked.query_type {
            RecordType::A => vec![a(&asked.name, [203, 0, 113, 1].into())],
            _ => Vec::new(),
        };
        let message = answer(query, records);
        vec![Reply { after: Duration::from_millis(50), message }]
    })
    .await;
    let resolver = resolver(&[&server]);
    let mut askers = JoinSet::new();
    for _ in 0..20 {
        let resolver = resolver.clone();
        askers.spawn(async move { resolver.resolve(WIFI, "www.example.com").await });
    }
    assert!(askers.join_all().await.iter().all(Result::is_ok));
    assert_eq!(server.queries(), 2, "one per family");
    assert!(resolver.shared.in_flight().is_empty());
}

#[tokio::test]
async fn an_answer_cut_short_is_asked_for_again_over_tcp() {
    let server = FakeServer::start(|query, over| {
        let asked = &query.queries[0];
        let mut message = answer(query, Vec::new());
        message.metadata.truncation = over == Over::Udp;
        if over == Over::Tcp && asked.query_type == RecordType::A {
            message.add_answers((0..60).map(|last| a(&asked.name, [203, 0, 113, last].into())));
        }
        vec![message.into()]
    })
    .await;
    let found = resolver(&[&server]).resolve(WIFI, "many.example.com").await.expect("found");
    assert_eq!(found.len(), 60);
}

#[tokio::test]
async fn a_chain_left_open_is_followed() {
    let server = FakeServer::start(|query, _| {
        let asked = &query.queries[0];
        let records = if asked.name == name("www.example.com") {
            vec![alias("www.example.com", "edge.example.net")]
        } else if asked.query_type == RecordType::A {
            vec![a(&asked.name, [203, 0, 113, 9].into())]
        } else {
            Vec::new()
        };
        vec![answer(query, records).into()]
    })
    .await;
    let resolver = resolver(&[&server]);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, Ok(vec![ip("203.0.113.9")]));
    let name = resolver.name_of(ip("203.0.113.9")).expect("just asked for");
    assert_eq!(name.as_str(), "www.example.com", "the name that was asked for");
}

#[tokio::test]
async fn forged_answers_are_not_taken() {
    let server = FakeServer::start(|query, _| {
        let asked = &query.queries[0];
        let mut other_id = answer(query, vec![a(&asked.name, [198, 51, 100, 66].into())]);
        other_id.metadata.id ^= 1;
        let mut other_question = answer(query, vec![a(&asked.name, [198, 51, 100, 66].into())]);
        other_question.queries[0].name = name("evil.example.com");
        let truth = match asked.query_type {
            RecordType::A => vec![a(&asked.name, [203, 0, 113, 1].into())],
            _ => Vec::new(),
        };
        vec![other_id.into(), other_question.into(), answer(query, truth).into()]
    })
    .await;
    let resolver = resolver(&[&server]);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, Ok(vec![ip("203.0.113.1")]));
}

#[tokio::test]
async fn a_lost_query_is_sent_again() {
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let server = FakeServer::start(move |query, _| {
        let asked = &query.queries[0];
        if seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 {
            return Vec::new();
        }
        let records = match asked.query_type {
            RecordType::A => vec![a(&asked.name, [203, 0, 113, 1].into())],
            _ => Vec::new(),
        };
        vec![answer(query, records).into()]
    })
    .await;
    let resolver = resolver(&[&server]);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, Ok(vec![ip("203.0.113.1")]));
}

#[tokio::test]
async fn a_name_that_no_path_knows_does_not_exist() {
    let wifi = FakeServer::with(&[]).await;
    let lte = FakeServer::with(&[]).await;
    let error = resolver(&[&wifi, &lte]).resolve(WIFI, "nope.example.com").await;
    assert!(matches!(error, Err(ResolveError::NoSuchName { .. })), "{error:?}");
}

#[tokio::test]
async fn a_poisoned_path_uses_what_an_honest_one_found() {
    for lie in [&["127.0.0.1"][..], &["10.1.2.3"], &["0.0.0.0"]] {
        let wifi = FakeServer::with(&[("news.example.com", lie)]).await;
        let lte = FakeServer::with(&[("news.example.com", &["203.0.113.7"])]).await;
        let resolver = resolver(&[&wifi, &lte]);
        assert_eq!(resolver.resolve(WIFI, "news.example.com").await, Ok(vec![ip("203.0.113.7")]));
        let name = HostName::parse("news.example.com").expect("valid");
        assert_eq!(resolver.suspicions(&name).first().map(|s| s.0), Some(WIFI));
    }
    let denying = FakeServer::with(&[]).await;
    let lte = FakeServer::with(&[("news.example.com", &["203.0.113.7"])]).await;
    let resolver = resolver(&[&denying, &lte]);
    assert_eq!(resolver.resolve(WIFI, "news.example.com").await, Ok(vec![ip("203.0.113.7")]));
}

#[tokio::test]
async fn a_path_with_dead_servers_borrows_another_paths_answer() {
    let wifi = FakeServer::silent().await;
    let lte = FakeServer::with(&[("www.example.com", &["203.0.113.7"])]).await;
    let resolver = resolver(&[&wifi, &lte]);
    assert_eq!(resolver.resolve(WIFI, "www.example.com").await, Ok(vec![ip("203.0.113.7")]));
}

#[tokio::test]
async fn failing_servers_are_named_as_the_reason() {
    let server = FakeServer::start(|query, _| {
        let mut message = answer(query, Vec::new());
        message.metadata.response_code = ResponseCode::ServFail;
        vec![message.into()]
    })
    .await;
    let error = resolver(&[&server]).resolve(WIFI, "www.example.com").await;
    let Err(ResolveError::Failed { reason, .. }) = error else { panic!("{error:?}") };
    assert_eq!(reason, "its DNS servers failed: Server Failure");
}

#[tokio::test]
async fn addresses_and_nonsense_are_never_asked_for() {
    let server = FakeServer::silent().await;
    let resolver = resolver(&[&server]);
    assert_eq!(resolver.resolve(WIFI, "203.0.113.1").await, Ok(vec![ip("203.0.113.1")]));
    assert_eq!(resolver.resolve(WIFI, "[2001:db8::1]").await, Ok(vec![ip("2001:db8::1")]));
    assert!(resolver.resolve(WIFI, "localhost").await.is_ok_and(|found| found[0].is_loopback()));
    let invalid = resolver.resolve(WIFI, "no such host").await;
    assert!(matches!(invalid, Err(ResolveError::InvalidName(_))));
    let gone = resolver.resolve(PathId(9), "www.example.com").await;
    assert!(matches!(gone, Err(ResolveError::PathUnusable { .. })));
    assert_eq!(server.queries(), 0);
}

#[tokio::test]
async fn silent_servers_are_not_waited_for_again() {
    let wifi = FakeServer::silent().await;
    let lte = FakeServer::start(|query, _| {
        let of = &query.queries[0].name;
        let records = match query.queries[0].query_type {
            RecordType::A => vec![a(of, [203, 0, 113, 7].into())],
            _ => Vec::new(),
        };
        vec![answer(query, records).into()]
    })
    .await;
    let resolver = resolver(&[&wifi, &lte]);
    resolver.resolve(WIFI, "first.example.com").await.expect("borrowed");
    let waited = tokio::time::Instant::now();
    let names = ["second.example.com", "first.example.com"];
    for name in names {
        assert_eq!(resolver.resolve(WIFI, name).await, Ok(vec![ip("203.0.113.7")]));
    }
    assert!(waited.elapsed() < Duration::from_millis(900), "less than the patience for one");
}

#[tokio::test]
async fn a_path_on_another_network_is_asked_anew() {
    let wifi = FakeServer::with(&[("www.example.com", &["203.0.113.1"])]).await;
    let uplinks = FakeUplinks::to(&[&wifi]);
    let resolver = resolver_over(uplinks.clone());
    resolver.resolve(WIFI, "www.example.com").await.expect("found");
    let asked = wifi.queries();
    resolver.resolve(WIFI, "www.example.com").await.expect("remembered");
    assert_eq!(wifi.queries(), asked);
    uplinks.join("another network");
    resolver.resolve(WIFI, "www.example.com").await.expect("found");
    assert_eq!(wifi.queries(), 2 * asked);
}

#[tokio::test]
async fn names_learned_by_other_means_count_like_answers() {
    let silent = FakeServer::silent().await;
    let resolver = resolver(&[&silent, &silent]);
    let name = HostName::parse("cdn.example.com").expect("valid");
    resolver.learn(WIFI, &name, &[ip("203.0.113.1")], Duration::from_secs(60));
    resolver.learn(LTE, &name, &[ip("198.51.100.1")], Duration::from_secs(60));
    assert_eq!(resolver.name_of(ip("203.0.113.1")), Some(name.clone()));
    assert_eq!(
        resolver.sibling_addresses(&name, ip("203.0.113.1"), LTE).await,
        Some(vec![ip("198.51.100.1")])
    );
}

#[tokio::test]
async fn suspicious_answers_are_told_of_once_with_their_path() {
    let honest = FakeServer::with(&[("www.example.com", &["203.0.113.1"])]).await;
    let lying = FakeServer::with(&[("www.example.com", &["10.0.0.1"])]).await;
    let denying = FakeServer::with(&[]).await;
    let resolver = resolver(&[&honest, &lying, &denying]);
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = std::sync::Arc::clone(&told);
    resolver.on_suspicion(move |name, path, suspicion| {
        heard.lock().expect("no panic under the lock").push((name.to_string(), path, suspicion));
    });
    let denier = PathId(3);
    for _ in 0..2 {
        for path in [WIFI, LTE, denier] {
            resolver.resolve(path, "www.example.com").await.expect("one path knows it");
        }
    }
    let told = told.lock().expect("no panic under the lock").clone();
    let name = "www.example.com".to_owned();
    assert_eq!(
        told,
        [
            (name.clone(), LTE, Suspicion::PrivateAddress(ip("10.0.0.1"))),
            (name, denier, Suspicion::DifferingNxdomain)
        ]
    );
}

#[tokio::test]
async fn a_server_that_only_another_path_reaches_is_not_waited_for_again() {
    let good =
        FakeServer::with(&[("a.example.com", &["203.0.113.1"]), ("b.example.com", &["203.0.113.2"])]).await;
    let unreachable = FakeServer::silent().await;
    let resolver = resolver_over(FakeUplinks::to(&[&good]).listing_first(WIFI, &unreachable));
    assert_eq!(resolver.resolve(WIFI, "a.example.com").await, Ok(vec![ip("203.0.113.1")]));
    let asked = unreachable.queries();
    assert!(asked > 0, "it is the first of the list");
    assert_eq!(resolver.resolve(WIFI, "b.example.com").await, Ok(vec![ip("203.0.113.2")]));
    assert_eq!(unreachable.queries(), asked, "the one that answered is asked first");
}
