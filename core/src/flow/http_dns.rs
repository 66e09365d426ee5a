//! Name answers carried by HTTP (FLEETY section 4.2): some applications ask a web service for addresses
//! instead of DNS. A rule of the feature database says where name and addresses stand.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use super::names::HostName;
use crate::mphttp::http::RequestHead;

/// Largest body looked at; the caller stops collecting there.
pub const MAX_BODY: usize = 64 * 1024;

/// Most addresses taken for one name.
const MAX_ADDRESSES: usize = 64;

/// Most names taken from one body.
const MAX_NAMES: usize = 64;

/// Where name and addresses stand in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerFormat {
    /// A JSON document.
    Json {
        /// Where its entries, one per name, are; `None` when the whole document is the one entry.
        entries: Option<JsonPath>,
        /// Where the name stands.
        name: NamePlace,
        /// Where the addresses stand within an entry: texts of one or several addresses. Texts that are
        /// none, such as aliases between them, are left out.
        addresses: JsonPath,
        /// Where the seconds stand that the answer may be kept.
        ttl: Option<JsonPath>,
    },
    /// Addresses separated by white space, commas, semicolons or vertical bars, and nothing else.
    List {
        /// The parameter of the request's query that has the name.
        name_parameter: String,
    },
}

/// Where the name stands that addresses belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamePlace {
    /// In the answer's entry.
    Entry(JsonPath),
    /// In a parameter of the request's query.
    Parameter(String),
}

/// Keys separated by dots, from an entry to values in it: `Answer.*.data`. `*` means every element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath(Vec<String>);

impl JsonPath {
    /// Reads a path; `None` when a key is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let keys: Vec<_> = text.split('.').map(str::to_owned).collect();
        keys.iter().all(|key| !key.is_empty()).then_some(Self(keys))
    }

    /// Every value the path leads to; arrays at its end count by their elements.
    fn walk<'a>(&self, from: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![from];
        for key in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| match value {
                    Value::Array(elements) if key == "*" => elements.iter().collect(),
                    Value::Object(members) if key == "*" => members.values().collect(),
                    Value::Object(members) => members.get(key).into_iter().collect(),
                    _ => Vec::new(),
                })
                .collect();
        }
        let elements = |value: &'a Value| match value {
            Value::Array(elements) => elements.iter().collect(),
            _ => vec![value],
        };
        found.into_iter().flat_map(elements).collect()
    }
}

/// A name and the addresses a web service gave for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpDnsAnswer {
    /// The name.
    pub name: HostName,
    /// Its addresses, at least one.
    pub addresses: Vec<IpAddr>,
    /// How long they may be kept, when the answer says so.
    pub ttl_seconds: Option<u32>,
}

/// Why a body gives no names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpDnsError {
    /// Above [`MAX_BODY`].
    #[error("the answer is larger than {MAX_BODY} bytes")]
    TooLarge,
    /// Not a JSON document.
    #[error("the answer is not JSON")]
    NotJson,
    /// A list with something that is no address.
    #[error("the answer is not a list of addresses")]
    NotAddresses,
    /// The rule's places hold no name with an address.
    #[error("the answer has no name with addresses where the rule expects them")]
    Nothing,
}

impl AnswerFormat {
    /// The names and addresses in `body`, the decoded answer to `request`.
    pub fn extract(&self, request: &RequestHead, body: &[u8]) -> Result<Vec<HttpDnsAnswer>, HttpDnsError> {
        if body.len() > MAX_BODY {
            return Err(HttpDnsError::TooLarge);
        }
        let answers = match self {
            Self::List { name_parameter } => {
                let text = std::str::from_utf8(body).map_err(|_| HttpDnsError::NotAddresses)?;
                let addresses = split_addresses(text)
                    .map(|address| address.parse().map_err(|_| HttpDnsError::NotAddresses))
                    .collect::<Result<Vec<IpAddr>, _>>()?;
                let name = query_parameter(&request.path(), name_parameter);
                answer(name, addresses, None).into_iter().collect()
            }
            Self::Json { entries, name, addresses, ttl } => {
                let document: Value = serde_json::from_slice(body).map_err(|_| HttpDnsError::NotJson)?;
                let entries = entries.as_ref().map_or_else(|| vec![&document], |path| path.walk(&document));
                let in_entry = |entry: &Value| {
                    let name = match name {
                        NamePlace::Entry(path) => {
                            path.walk(entry).first().and_then(|name| Some(name.as_str()?.to_owned()))
                        }
                        NamePlace::Parameter(parameter) => query_parameter(&request.path(), parameter),
                    };
                    let texts = addresses.walk(entry);
                    let found = texts.iter().filter_map(|text| text.as_str()).flat_map(split_addresses);
                    let found = found.filter_map(|address| address.parse().ok()).collect();
                    let seconds = ttl.as_ref().and_then(|path| {
                        // The shortest, as in DNS, where several records make one answer.
                        path.walk(entry).into_iter().filter_map(Value::as_u64).min()
                    });
                    answer(name, found, seconds)
                };
                entries.into_iter().filter_map(in_entry).take(MAX_NAMES).collect::<Vec<_>>()
            }
        };
        if answers.is_empty() { Err(HttpDnsError::Nothing) } else { Ok(answers) }
    }
}

fn answer(name: Option<String>, mut addresses: Vec<IpAddr>, seconds: Option<u64>) -> Option<HttpDnsAnswer> {
    let name = HostName::parse(&name?).ok()?;
    addresses.truncate(MAX_ADDRESSES);
    let ttl_seconds = seconds.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
    (!addresses.is_empty()).then_some(HttpDnsAnswer { name, addresses, ttl_seconds })
}

fn split_addresses(text: &str) -> impl Iterator<Item = &str> {
    let separates = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '|');
    text.split(separates).filter(|part| !part.is_empty())
}

/// The value of `parameter` in the query of `target`. Host names need no percent-encoding.
fn query_parameter(target: &str, parameter: &str) -> Option<String> {
    let (_, query) = target.split_once('?')?;
    query.split('&').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        (name == parameter).then(|| value.to_owned())
    })
}

/// An answer's format as rules write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAnswerFormat {
    format: RawFormat,
    entries: Option<String>,
    name: Option<String>,
    name_parameter: Option<String>,
    addresses: Option<String>,
    ttl: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawFormat {
    Json,
    List,
}

impl TryFrom<RawAnswerFormat> for AnswerFormat {
    type Error = String;

    fn try_from(raw: RawAnswerFormat) -> Result<Self, String> {
        let path = |text: String| JsonPath::parse(&text).ok_or(format!("`{text}` has an empty key"));
        match raw.format {
            RawFormat::Json => {
                let name = match (raw.name, raw.name_parameter) {
                    (Some(name), None) => NamePlace::Entry(path(name)?),
                    (None, Some(parameter)) => NamePlace::Parameter(parameter),
                    _ => return Err("`answer` needs either `name` or `name_parameter`".to_owned()),
                };
                let addresses = raw.addresses.ok_or("`answer` needs `addresses`")?;
                let entries = raw.entries.map(path).transpose()?;
                let ttl = raw.ttl.map(path).transpose()?;
                Ok(Self::Json { entries, name, addresses: path(addresses)?, ttl })
            }
            RawFormat::List => {
                if raw.entries.is_some() || raw.name.is_some() || raw.addresses.is_some() || raw.ttl.is_some()
                {
                    return Err("a list has no place but `name_parameter`".to_owned());
                }
                let name_parameter = raw.name_parameter.ok_or("a list needs `name_parameter`")?;
                Ok(Self::List { name_parameter })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flow::features::{Action, FeatureDatabase};
    use crate::mphttp::http::HeadLimits;

    fn asked(path: &str) -> RequestHead {
        let text = format!("GET {path} HTTP/1.1\r\nHost: 203.0.113.1\r\n\r\n");
        RequestHead::parse(text.as_bytes(), HeadLimits::default()).unwrap().unwrap().0
    }

    /// The format that a rule's `answer` gives.
    fn format(answer: &str) -> AnswerFormat {
        let rule = format!("[[rule]]\nname = \"d\"\naction = \"dns-answer\"\nanswer = {answer}");
        match FeatureDatabase::parse(&rule).unwrap().decide(&asked("/"), "h").action {
            Action::DnsAnswer(format) => format,
            other => panic!("{other:?}"),
        }
    }

    fn known(name: &str, addresses: &[&str], ttl_seconds: Option<u32>) -> HttpDnsAnswer {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        HttpDnsAnswer { name: HostName::parse(name).unwrap(), addresses, ttl_seconds }
    }

    #[test]
    fn a_plain_list_belongs_to_the_name_in_the_query() {
        let list = format("{ format = \"list\", name_parameter = \"dn\" }");
        let request = asked("/d?x=1&dn=WWW.example.com.");
        assert_eq!(
            list.extract(&request, b"192.0.2.1;192.0.2.2\n2001:db8::1"),
            Ok(vec![known("www.example.com", &["192.0.2.1", "192.0.2.2", "2001:db8::1"], None)])
        );
        assert_eq!(list.extract(&request, b"<html>"), Err(HttpDnsError::NotAddresses));
        assert_eq!(list.extract(&request, b" "), Err(HttpDnsError::Nothing));
        assert_eq!(list.extract(&asked("/d"), b"192.0.2.1"), Err(HttpDnsError::Nothing));
        assert_eq!(list.extract(&request, &[b' '; MAX_BODY + 1]), Err(HttpDnsError::TooLarge));
    }

    #[test]
    fn json_gives_names_and_addresses_where_the_rule_says() {
        let flat = format("{ format = \"json\", name = \"host\", addresses = \"ips\", ttl = \"ttl\" }");
        let body = br#"{"host": "a.example", "ips": ["192.0.2.1", "192.0.2.2"], "ttl": 60}"#;
        assert_eq!(
            flat.extract(&asked("/"), body),
            Ok(vec![known("a.example", &["192.0.2.1", "192.0.2.2"], Some(60))])
        );
        let many = format("{ format = \"json\", entries = \"dns\", name = \"host\", addresses = \"ips\" }");
        let body =
            br#"{"dns": [{"host": "a.b", "ips": "192.0.2.1,192.0.2.2"}, {"host": "c.d", "ips": []}, 7]}"#;
        assert_eq!(
            many.extract(&asked("/"), body),
            Ok(vec![known("a.b", &["192.0.2.1", "192.0.2.2"], None)])
        );
        let doh = format(
            "{ format = \"json\", name_parameter = \"name\", addresses = \"Answer.*.data\", ttl = \"Answer.*.TTL\" }",
        );
        let body = br#"{"Answer": [{"data": "x.example.", "TTL": 300}, {"data": "192.0.2.9", "TTL": 20}]}"#;
        assert_eq!(
            doh.extract(&asked("/resolve?name=a.b&type=A"), body),
            Ok(vec![known("a.b", &["192.0.2.9"], Some(20))])
        );
        assert_eq!(doh.extract(&asked("/"), b"{"), Err(HttpDnsError::NotJson));
        assert_eq!(doh.extract(&asked("/"), b"{}"), Err(HttpDnsError::Nothing));
    }

    proptest! {
        #[test]
        fn no_body_makes_extraction_panic(body in "[\\[\\]{}\",:a-c0-9. ]{0,60}", path in "/[a-z?=&.]{0,12}") {
            for answer in [
                "{ format = \"list\", name_parameter = \"a\" }",
                "{ format = \"json\", entries = \"a.*\", name = \"b\", addresses = \"c\", ttl = \"a\" }",
            ] {
                let _ = format(answer).extract(&asked(&path), body.as_bytes());
            }
        }
    }
}
