//! Where a stream goes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BufMut, Bytes};

use super::MAX_HOST;

/// A host as the program named it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name, which the relay looks up.
    Name(String),
}

/// Where the relay shall connect a stream to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The TCP port.
    pub port: u16,
}

const IPV4: u8 = 4;
const IPV6: u8 = 6;
const NAME: u8 = 0;

impl Destination {
    /// Appends kind, host and port; names longer than [`MAX_HOST`] are cut and so refused over there.
    pub(super) fn put(&self, into: &mut impl BufMut) {
        match &self.host {
            Host::Address(IpAddr::V4(address)) => {
                into.put_u8(IPV4);
                into.put_slice(&address.octets());
            }
            Host::Address(IpAddr::V6(address)) => {
                into.put_u8(IPV6);
                into.put_slice(&address.octets());
            }
            Host::Name(name) => {
                let name = &name.as_bytes()[..name.len().min(MAX_HOST)];
                into.put_u8(NAME);
                into.put_u8(name.len() as u8);
                into.put_slice(name);
            }
        }
        into.put_u16(self.port);
    }

    /// Takes a destination off `body`; names are printable ASCII without blanks.
    pub(super) fn take(body: &mut Bytes) -> Option<Self> {
        let host = match body.try_get_u8().ok()? {
            IPV4 => Host::Address(Ipv4Addr::from(body.try_get_u32().ok()?).into()),
            IPV6 => Host::Address(Ipv6Addr::from(body.try_get_u128().ok()?).into()),
            NAME => {
                let length = usize::from(body.try_get_u8().ok()?);
                if length == 0 || length > MAX_HOST || length > body.len() {
                    return None;
                }
                let name = body.split_to(length);
                if !name.iter().all(u8::is_ascii_graphic) {
                    return None;
                }
                Host::Name(String::from_utf8(name.to_vec()).ok()?)
            }
            _ => return None,
        };
        let port = body.try_get_u16().ok()?;
        Some(Self { host, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Host::Address(address) => write!(f, "{address}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}
