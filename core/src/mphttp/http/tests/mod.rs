//! Tests of the HTTP module by subject.

use super::*;

mod body;
mod eligible;
mod heads;
mod properties;

/// The request that `text` is, with `\n` written for CRLF.
fn request(text: &str) -> RequestHead {
    try_request(text).expect("a good head").expect("a complete head")
}

fn try_request(text: &str) -> Result<Option<RequestHead>, HeadError> {
    let bytes = text.replace('\n', "\r\n");
    Ok(RequestHead::parse(bytes.as_bytes(), HeadLimits::default())?.map(|(head, _)| head))
}

/// The response that `text` is, with `\n` written for CRLF.
fn response(text: &str) -> ResponseHead {
    try_response(text).expect("a good head").expect("a complete head")
}

fn try_response(text: &str) -> Result<Option<ResponseHead>, HeadError> {
    let bytes = text.replace('\n', "\r\n");
    Ok(ResponseHead::parse(bytes.as_bytes(), HeadLimits::default())?.map(|(head, _)| head))
}
