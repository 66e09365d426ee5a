use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::{RData, Record, RecordType};

use multiway_core::flow::names::HostName;

use super::*;
use crate::dns::testing::{FakeServer, Reply, a, answer, name, resolver, thrifty_resolver};

async fn serve(resolver: &Resolver) -> SocketAddr {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = tcp.local_addr().expect("bound");
    let udp = UdpSocket::bind(address).await.expect("the UDP port of the same number");
    let resolver = resolver.clone();
    tokio::spawn(async move { resolver.serve(udp, tcp).await });
    address
}

fn query(of: &str, record_type: RecordType, id: u16) -> Message {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(of), record_type));
    message
}

async fn ask_bytes(server: SocketAddr, query: &[u8]) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    socket.send_to(query, server).await.expect("sent");
    let mut buffer = vec![0; 65_535];
    let received = timeout(Duration::from_secs(10), socket.recv(&mut buffer)).await.ok()?;
    Some(buffer[..received.expect("received")].to_vec())
}

async fn ask(server: SocketAddr, query: &Message) -> Message {
    let bytes = ask_bytes(server, &query.to_vec().expect("valid")).await.expect("an answer");
    Message::from_vec(&bytes).expect("a message")
}

fn addresses(message: &Message) -> Vec<IpAddr> {
    message.answers.iter().filter_map(|record| record.data.ip_addr()).collect()
}

/// Answers A queries with `address` after `after`.
async fn slow(address: [u8; 4], after: Duration) -> FakeServer {
    FakeServer::start(move |query, _| {
        let message = answer(query, vec![a(&query.queries[0].name, address.into())]);
        vec![Reply { after, message }]
    })
    .await
}

#[tokio::test]
async fn a_query_goes_out_on_every_path_and_every_answer_is_remembered() {
    let wifi = FakeServer::with(&[("cdn.example.com", &["203.0.113.1"])]).await;
    let lte = slow([198, 51, 100, 1], Duration::from_millis(200)).await;
    let resolver = resolver(&[&wifi, &lte]);
    let server = serve(&resolver).await;
    let response = ask(server, &query("cdn.example.com", RecordType::A, 77)).await;
    assert_eq!(response.metadata.id, 77);
    assert_eq!(addresses(&response), [IpAddr::from([203, 0, 113, 1])]);
    let late: IpAddr = [198, 51, 100, 1].into();
    while resolver.name_of(late).is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((wifi.queries(), lte.queries()), (1, 1));
    let name = HostName::parse("cdn.example.com").expect("a literal of this test");
    let sibling = resolver.sibling_addresses(&name, IpAddr::from([203, 0, 113, 1]), PathId(2)).await;
    assert_eq!(sibling, Some(vec![late]));
}

#[tokio::test]
async fn a_thrifty_user_has_names_looked_up_over_the_metered_path_only_when_the_other_does_not_know() {
    let zone = [("cdn.example.com", &["203.0.113.1"][..]), ("bad.example.com", &["0.0.0.0"])];
    let wifi = FakeServer::with(&zone).await;
    let lte = FakeServer::with(&[("bad.example.com", &["198.51.100.1"])]).await;
    let server = serve(&thrifty_resolver(&wifi, &lte)).await;
    let good = ask(server, &query("cdn.example.com", RecordType::A, 1)).await;
    assert_eq!(addresses(&good), [IpAddr::from([203, 0, 113, 1])]);
    let missing = ask(server, &query("nowhere.example.com", RecordType::A, 2)).await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!((wifi.queries(), lte.queries()), (2, 0));
    let doubtful = ask(server, &query("bad.example.com", RecordType::A, 3)).await;
    assert_eq!(addresses(&doubtful), [IpAddr::from([198, 51, 100, 1])]);
    assert_eq!((wifi.queries(), lte.queries()), (3, 1));
}

#[tokio::test]
async fn a_thrifty_user_gets_the_metered_paths_answer_when_the_others_servers_are_silent_or_fail() {
    let refusing = FakeServer::start(|query, _| {
        let mut message = answer(query, Vec::new());
        message.metadata.response_code = ResponseCode::ServFail;
        vec![message.into()]
    })
    .await;
    for wifi in [FakeServer::silent().await, refusing] {
        let lte = FakeServer::with(&[("cdn.example.com", &["198.51.100.1"])]).await;
        let server = serve(&thrifty_resolver(&wifi, &lte)).await;
        let response = ask(server, &query("cdn.example.com", RecordType::A, 1)).await;
        assert_eq!(addresses(&response), [IpAddr::from([198, 51, 100, 1])]);
    }
}

#[tokio::test]
async fn the_preferred_paths_answer_wins_a_close_race() {
    let wifi = slow([203, 0, 113, 1], Duration::from_millis(10)).await;
    let lte = slow([198, 51, 100, 1], Duration::ZERO).await;
    let server = serve(&resolver(&[&wifi, &lte])).await;
    let response = ask(server, &query("cdn.example.com", RecordType::A, 1)).await;
    assert_eq!(addresses(&response), [IpAddr::from([203, 0, 113, 1])]);
}

#[tokio::test]
async fn a_dead_preferred_path_does_not_hold_the_answer_up() {
    let wifi = FakeServer::silent().await;
    let lte = FakeServer::with(&[("cdn.example.com", &["198.51.100.1"])]).await;
    let server = serve(&resolver(&[&wifi, &lte])).await;
    let started = Instant::now();
    let response = ask(server, &query("cdn.example.com", RecordType::A, 1)).await;
    assert_eq!(addresses(&response), [IpAddr::from([198, 51, 100, 1])]);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_poisoned_answer_waits_for_an_honest_one() {
    let wifi = FakeServer::with(&[("news.example.com", &["127.0.0.1"])]).await;
    let lte = slow([203, 0, 113, 7], Duration::from_millis(60)).await;
    let server = serve(&resolver(&[&wifi, &lte])).await;
    let response = ask(server, &query("news.example.com", RecordType::A, 1)).await;
    assert_eq!(addresses(&response), [IpAddr::from([203, 0, 113, 7])]);
}

#[tokio::test]
async fn other_record_types_and_edns_pass_through() {
    let upstream = FakeServer::start(|query, _| {
        let edns = query.edns.clone().expect("the client's EDNS");
        assert_eq!(edns.max_payload(), 1400);
        let text = RData::TXT(TXT::new(vec!["v=spf1 -all".into()]));
        let record = Record::from_rdata(query.queries[0].name.clone(), 60, text);
        let mut message = answer(query, vec![record]);
        message.set_edns(edns);
        vec![message.into()]
    })
    .await;
    let server = serve(&resolver(&[&upstream])).await;
    let mut query = query("example.com", RecordType::TXT, 5);
    let mut edns = Edns::new();
    edns.set_max_payload(1400);
    query.set_edns(edns);
    let response = ask(server, &query).await;
    assert_eq!(response.answers.len(), 1);
    assert!(response.edns.is_some());
}

#[tokio::test]
async fn long_answers_are_cut_over_udp_and_whole_over_tcp() {
    let upstream = FakeServer::start(|query, over| {
        let of = &query.queries[0].name;
        let mut message = answer(query, Vec::new());
        message.metadata.truncation = over == crate::dns::testing::Over::Udp;
        if over == crate::dns::testing::Over::Tcp {
            message.add_answers((0..60).map(|last| a(of, [203, 0, 113, last].into())));
        }
        vec![message.into()]
    })
    .await;
    let server = serve(&resolver(&[&upstream])).await;
    let asked = query("many.example.com", RecordType::A, 9);
    let response = ask(server, &asked).await;
    assert!(response.metadata.truncation && response.answers.is_empty());

    let mut stream = TcpStream::connect(server).await.expect("connected");
    // Two pipelined queries in one write.
    let mut bytes = Vec::new();
    for id in [9, 10] {
        let asked = query("many.example.com", RecordType::A, id).to_vec().expect("valid");
        bytes.extend(u16::try_from(asked.len()).expect("short").to_be_bytes());
        bytes.extend(asked);
    }
    stream.write_all(&bytes).await.expect("written");
    stream.shutdown().await.expect("half-closed");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut response = vec![0; usize::from(stream.read_u16().await.expect("an answer"))];
        stream.read_exact(&mut response).await.expect("whole");
        let response = Message::from_vec(&response).expect("a message");
        assert_eq!(response.answers.len(), 60);
        ids.push(response.metadata.id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [9, 10]);
    assert_eq!(stream.read(&mut [0]).await.expect("closed"), 0);
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_denied() {
    let wifi = FakeServer::with(&[]).await;
    let lte = FakeServer::with(&[]).await;
    let server = serve(&resolver(&[&wifi, &lte])).await;
    let response = ask(server, &query("nope.example.com", RecordType::A, 1)).await;
    assert_eq!(response.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn failure_of_every_path_is_said() {
    let failing = FakeServer::start(|query, _| {
        let mut message = answer(query, Vec::new());
        message.metadata.response_code = ResponseCode::Refused;
        vec![message.into()]
    })
    .await;
    let server = serve(&resolver(&[&failing])).await;
    let response = ask(server, &query("www.example.com", RecordType::A, 1)).await;
    assert_eq!(response.metadata.response_code, ResponseCode::Refused);
    let server = serve(&resolver(&[])).await;
    let response = ask(server, &query("www.example.com", RecordType::A, 1)).await;
    assert_eq!(response.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn malformed_queries_are_refused_and_harmless() {
    let upstream = FakeServer::with(&[("www.example.com", &["203.0.113.1"])]).await;
    let server = serve(&resolver(&[&upstream])).await;
    let mut two_questions = query("www.example.com", RecordType::A, 3);
    two_questions.add_query(Query::query(name("b.example.com"), RecordType::A));
    let bytes = two_questions.to_vec().expect("valid");
    let response = ask_bytes(server, &bytes).await.expect("a refusal");
    let response = Message::from_vec(&response).expect("a message");
    assert_eq!((response.metadata.id, response.metadata.response_code), (3, ResponseCode::FormErr));
    let response = ask(server, &query("www.example.com", RecordType::A, 4)).await;
    assert_eq!(addresses(&response), [IpAddr::from([203, 0, 113, 1])]);
}

#[tokio::test]
async fn localhost_is_this_device_whatever_the_servers_say_and_they_are_not_asked() {
    let liar = slow([203, 0, 113, 66], Duration::ZERO).await;
    let resolver = resolver(&[&liar]);
    let server = serve(&resolver).await;
    for (name, record_type, expected) in [
        ("localhost", RecordType::A, &["127.0.0.1"][..]),
        ("LOCALHOST", RecordType::AAAA, &["::1"]),
        ("app.localhost", RecordType::A, &["127.0.0.1"]),
        ("_a.b.localhost", RecordType::A, &["127.0.0.1"]),
        ("localhost", RecordType::MX, &[]),
    ] {
        let mut asked = query(name, record_type, 7);
        asked.set_edns(Edns::new());
        let answer = ask(server, &asked).await;
        let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().expect("an address")).collect();
        assert_eq!(addresses(&answer), expected, "{name} {record_type}");
        let head = &answer.metadata;
        assert_eq!((head.id, head.response_code), (7, hickory_proto::op::ResponseCode::NoError));
        assert!(head.recursion_available && answer.edns.is_some(), "{answer:?}");
    }
    assert_eq!(liar.queries(), 0);
    ask(server, &query("localhost.example.com", RecordType::A, 8)).await;
    assert!(liar.queries() > 0, "that is somebody else's");
}
