//! From a URL to a request.

use std::path::Path;

use multiway_core::mphttp::http::{HeadLimits, RequestHead, ResponseHead};
use url::{Host, Url};

use super::GetError;
use crate::origin::Origin;
use crate::tls;

/// Headers that belong to the host they were given for, not to one it redirects to.
const PRIVATE_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

pub(super) fn parse_url(text: &str) -> Result<Url, GetError> {
    let malformed = |reason: &str| GetError::Url { url: text.to_owned(), reason: reason.to_owned() };
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => malformed("it does not begin with http:// or https://"),
        other => malformed(&other.to_string()),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(malformed("only http and https are supported"));
    }
    if url.host().is_none() {
        return Err(malformed("it names no host"));
    }
    Ok(url)
}

pub(super) fn origin(url: &Url, cacert: Option<&Path>) -> Result<Origin, GetError> {
    let host = match url.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => return Err(GetError::Url { url: url.to_string(), reason: "it names no host".to_owned() }),
    };
    let tls = if url.scheme() == "https" { Some(tls::client(cacert)?) } else { None };
    let port = url.port_or_known_default().unwrap_or(80);
    Ok(Origin { host, port, intercepted: None, name: None, tls })
}

/// The request for the whole of `url`. Only the identity coding is accepted, so that bytes are the
/// object's own on every path.
pub(super) fn head(
    url: &Url,
    headers: &[(String, String)],
    same_origin: bool,
) -> Result<RequestHead, GetError> {
    let mut text = format!("GET {}", url.path());
    if let Some(query) = url.query() {
        text.push('?');
        text.push_str(query);
    }
    let authority = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    };
    text.push_str(&format!(" HTTP/1.1\r\nHost: {authority}\r\n"));
    let given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !given("user-agent") {
        text.push_str(concat!("User-Agent: multiway/", env!("CARGO_PKG_VERSION"), "\r\n"));
    }
    if !given("accept") {
        text.push_str("Accept: */*\r\n");
    }
    text.push_str("Accept-Encoding: identity\r\n");
    if !url.username().is_empty() && !given("authorization") {
        return Err(GetError::Url {
            url: url.to_string(),
            reason: "credentials in a URL are not sent; use --header 'Authorization: ...'".to_owned(),
        });
    }
    for (name, value) in headers {
        let private = PRIVATE_HEADERS.iter().any(|field| name.eq_ignore_ascii_case(field));
        if !private || same_origin {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text.push_str("\r\n");
    match RequestHead::parse(text.as_bytes(), HeadLimits::default()) {
        Ok(Some((head, length))) if length == text.len() => Ok(head),
        _ => {
            let all: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            Err(GetError::Header(all.join(", ")))
        }
    }
}

pub(super) fn redirect(from: &Url, head: &ResponseHead) -> Result<Url, GetError> {
    let location = head.headers().get_str("location").ok_or_else(|| GetError::Broken {
        url: from.to_string(),
        reason: format!("status {} without Location", head.status()),
    })?;
    let refused = |url: &str, reason: &str| {
        GetError::Url { url: url.to_owned(), reason: reason.to_owned() }.of_redirect(from)
    };
    let to = from.join(location).map_err(|error| refused(location, &error.to_string()))?;
    if from.scheme() == "https" && to.scheme() == "http" {
        return Err(refused(to.as_str(), "it is not protected as https is"));
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err(refused(to.as_str(), "credentials in a URL are not sent"));
    }
    parse_url(to.as_str()).map_err(|error| error.of_redirect(from))
}

/// `text` with its `%XX` replaced where that gives UTF-8.
pub(super) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (byte, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
