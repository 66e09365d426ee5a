//! The first frame of each direction of a subflow.

use std::fmt;

use bytes::{Buf, BufMut, Bytes};

use super::{MAX_TEXT, MAX_TOKEN, varint};
use crate::bond::subflow::SubflowId;

/// Names a session and proves the right to join it: the device chooses it by chance and shows it
/// inside TLS only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(secret)")
    }
}

/// What a subflow is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloKind {
    /// It begins a session, by right of this token.
    Init {
        /// Signed by the relay's operator.
        token: Bytes,
    },
    /// It joins the session.
    Join,
}

/// HELLO: what a device says first on every subflow. Other frames may follow without a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// [`super::VERSION`].
    pub version: u64,
    /// The session.
    pub key: SessionKey,
    /// The subflow's number within the session; never used twice.
    pub subflow: SubflowId,
    /// Tells which subflows share a path; the device's choice and of no other meaning.
    pub path: u32,
    /// Whether the subflow is to carry data only while no other one can.
    pub backup: bool,
    /// Begin or join.
    pub kind: HelloKind,
}

/// HELLO_OK: what the relay answers first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloOk {
    /// The version that both speak from here on.
    pub version: u64,
    /// Most streams of the session at a time.
    pub max_streams: u64,
    /// Most subflows of the session at a time.
    pub max_subflows: u64,
    /// How long the session outlives its last subflow, in seconds.
    pub linger_seconds: u64,
    /// Where joins have to go, as `host:port`; empty for the address that was connected to.
    pub join_address: String,
}

const INIT: u8 = 0;
const JOIN: u8 = 1;
const BACKUP: u8 = 1;

impl Hello {
    pub(super) fn put(&self, into: &mut impl BufMut) {
        varint::put(into, self.version);
        into.put_slice(&self.key.0);
        varint::put(into, self.subflow.0);
        varint::put(into, u64::from(self.path));
        into.put_u8(if self.backup { BACKUP } else { 0 });
        match &self.kind {
            HelloKind::Init { token } => {
                into.put_u8(INIT);
                varint::put(into, token.len() as u64);
                into.put_slice(token);
            }
            HelloKind::Join => into.put_u8(JOIN),
        }
    }

    /// Reads a body. What follows the fields of another version than [`super::VERSION`] is left
    /// aside, so that a relay can tell which version it was offered.
    pub(super) fn take(body: &mut Bytes) -> Option<Self> {
        let version = take_varint(body)?;
        let mut key = [0; 16];
        body.try_copy_to_slice(&mut key).ok()?;
        let subflow = SubflowId(take_varint(body)?);
        let path = u32::try_from(take_varint(body)?).ok()?;
        let flags = body.try_get_u8().ok()?;
        if flags & !BACKUP != 0 {
            return None;
        }
        let kind = match body.try_get_u8().ok()? {
            INIT => HelloKind::Init { token: take_string(body, MAX_TOKEN)? },
            JOIN => HelloKind::Join,
            _ => return None,
        };
        if version != super::VERSION {
            body.clear();
        }
        Some(Self { version, key: SessionKey(key), subflow, path, backup: flags & BACKUP != 0, kind })
    }
}

impl HelloOk {
    pub(super) fn put(&self, into: &mut impl BufMut) {
        varint::put(into, self.version);
        varint::put(into, self.max_streams);
        varint::put(into, self.max_subflows);
        varint::put(into, self.linger_seconds);
        put_text(into, &self.join_address);
    }

    pub(super) fn take(body: &mut Bytes) -> Option<Self> {
        Some(Self {
            version: take_varint(body)?,
            max_streams: take_varint(body)?,
            max_subflows: take_varint(body)?,
            linger_seconds: take_varint(body)?,
            join_address: take_text(body)?,
        })
    }
}

pub(super) fn take_varint(body: &mut Bytes) -> Option<u64> {
    let (value, length) = varint::read(body)?;
    body.advance(length);
    Some(value)
}

/// Takes a length of at most `most` and as many bytes.
pub(super) fn take_string(body: &mut Bytes, most: usize) -> Option<Bytes> {
    let length = usize::try_from(take_varint(body)?).ok()?;
    (length <= most && length <= body.len()).then(|| body.split_to(length))
}

pub(super) fn take_text(body: &mut Bytes) -> Option<String> {
    String::from_utf8(take_string(body, MAX_TEXT)?.to_vec()).ok()
}

/// Appends a length and `text`, cut to what [`take_text`] accepts.
pub(super) fn put_text(into: &mut impl BufMut, text: &str) {
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    varint::put(into, text.len() as u64);
    into.put_slice(text.as_bytes());
}
