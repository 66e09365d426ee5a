//! HTTP/1.1 as Multiway needs it (RFC 9110, RFC 9112): heads that keep their bytes, message framing
//! that counts but never rewrites, ranges, and the decision what may be split.
//!
//! Nothing here is lenient where leniency lets two parties see different messages: such heads are
//! refused with a [`HeadError`]. An intercepted connection whose head is refused can still be relayed
//! as opaque bytes to the one server the application chose.

mod body;
mod eligible;
mod framing;
mod headers;
mod method;
mod range;
mod refusal;
mod request;
mod response;
mod target;
mod validator;

#[cfg(test)]
mod tests;

pub use body::{BodyError, BodyReader};
pub use eligible::{
    Mismatch, RangeAnswer, Representation, SplitRequest, WhyNot, request_may_split, response_may_split,
    same_representation,
};
pub use framing::BodyLength;
pub use headers::{HeadError, HeadLimits, Headers, Version};
pub use method::Method;
pub use range::{ByteRange, ContentRange, RangeError, RequestedRange};
pub use refusal::{Refusal, refusal};
pub use request::RequestHead;
pub use response::{Reframe, ResponseHead, connection_persists};
pub use target::{Authority, RequestTarget, TargetError};
pub use validator::EntityTag;
