//! What a relay's operator hands to a user: where the relay is, its key, and a token.
//!
//! `multiway://HOST:PORT/#DATA`, where `DATA` is base64url without padding of a version octet, the
//! SHA-256 of the relay's public key (its `SubjectPublicKeyInfo`) and the token. The part behind the
//! `#` is what browsers never send anywhere, should one be given the URL.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::token::{SignedToken, TokenError};

/// How an invite begins.
pub const SCHEME: &str = "multiway://";

/// The one layout of `DATA` there is.
const VERSION: u8 = 1;

/// Longest URL that is looked at. A token with the longest name makes about 350 characters.
const LONGEST: usize = 2048;

/// Where a relay is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RelayAddress {
    host: String,
    port: u16,
}

/// Why a text is no address of a relay.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no address of a relay, such as relay.example.org:443 or [2001:db8::1]:443")]
pub struct RelayAddressError(String);

impl RelayAddress {
    /// A name, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, when it is not a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for RelayAddress {
    type Err = RelayAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || RelayAddressError(text.chars().take(80).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().ok().filter(|&port| port != 0).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None if host.contains(':') => return Err(wrong()),
            None => {
                rustls_pki_types::ServerName::try_from(host).map_err(|_| wrong())?;
                host.to_ascii_lowercase()
            }
        };
        Ok(Self { host, port })
    }
}

/// SHA-256 of a relay's public key, by which a device knows it again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; Self::LENGTH]);

impl Pin {
    const LENGTH: usize = 32;

    /// The pin of a public key in DER.
    pub fn of(public_key: &[u8]) -> Self {
        Self(Sha256::digest(public_key).into())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An invite to a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invite {
    /// Where the relay is.
    pub address: RelayAddress,
    /// Its key.
    pub pin: Pin,
    /// What lets the device in.
    pub token: SignedToken,
}

/// Why a text is no invite.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InviteError {
    /// It is something else.
    #[error("this is no invite: one begins with `{SCHEME}` and is printed by `multiway relay invite`")]
    Scheme,
    /// The part before the `#` is wrong.
    #[error("the invite is damaged: {0}")]
    Address(#[from] RelayAddressError),
    /// The part after the `#` is wrong.
    #[error("the invite is damaged: {0}; copy it whole, from `{SCHEME}` to its last character")]
    Damaged(&'static str),
    /// It is newer than this program.
    #[error("the invite has version {0}, which this version of multiway does not know; update multiway")]
    Version(u8),
    /// Its token is wrong.
    #[error("the invite is damaged: {0}")]
    Token(#[from] TokenError),
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut data = vec![VERSION];
        data.extend_from_slice(&self.pin.0);
        data.extend_from_slice(self.token.as_bytes());
        write!(f, "{SCHEME}{}/#{}", self.address, BASE64URL_NOPAD.encode(&data))
    }
}

impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let rest = text.strip_prefix(SCHEME).ok_or(InviteError::Scheme)?;
        if text.len() > LONGEST {
            return Err(InviteError::Damaged("it is too long"));
        }
        let (address, data) = rest.split_once("/#").ok_or(InviteError::Damaged(
            "the part from `#` on is missing (a shell takes it for a comment: put the URL in quotes)",
        ))?;
        let address = address.parse()?;
        let data = BASE64URL_NOPAD
            .decode(data.as_bytes())
            .map_err(|_| InviteError::Damaged("characters are missing or wrong"))?;
        let (&version, data) = data.split_first().ok_or(InviteError::Damaged("it is cut short"))?;
        if version != VERSION {
            return Err(InviteError::Version(version));
        }
        let (pin, token) =
            data.split_first_chunk::<{ Pin::LENGTH }>().ok_or(InviteError::Damaged("it is cut short"))?;
        Ok(Self { address, pin: Pin(*pin), token: SignedToken::parse(token)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bond::token::{Token, TokenId, TokenKey};

    fn invite() -> Invite {
        let key = TokenKey::generate().unwrap();
        let token = Token {
            id: TokenId([7; TokenId::LENGTH]),
            name: "Ada's laptop".to_owned(),
            expires: Some(2_000_000_000),
            monthly_bytes: Some(50_000_000_000),
        };
        Invite {
            address: "relay.example.org:443".parse().unwrap(),
            pin: Pin::of(b"key"),
            token: key.sign(&token),
        }
    }

    #[test]
    fn an_invite_survives_being_printed_and_read() {
        let invite = invite();
        let text = invite.to_string();
        assert!(text.starts_with("multiway://relay.example.org:443/#"), "{text}");
        assert_eq!(text.parse::<Invite>(), Ok(invite.clone()));
        assert_eq!(format!(" {text}\n").parse::<Invite>(), Ok(invite));
    }

    #[test]
    fn every_damage_is_told_and_none_is_let_through() {
        let text = invite().to_string();
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<Invite>().is_err(), "cut at {cut}");
        }
        assert_eq!("https://example.org/".parse::<Invite>(), Err(InviteError::Scheme));
        let without_fragment = text.split('#').next().unwrap().parse::<Invite>().unwrap_err().to_string();
        assert!(without_fragment.contains("quotes"), "{without_fragment}");
        assert!(matches!(text.replace(":443", "").parse::<Invite>(), Err(InviteError::Address(_))));
        let newer = format!("{SCHEME}a:1/#{}", BASE64URL_NOPAD.encode(&[9; 200]));
        assert_eq!(newer.parse::<Invite>(), Err(InviteError::Version(9)));
    }

    #[test]
    fn addresses_are_names_or_ip_addresses_with_a_port() {
        for (text, host) in [
            ("Relay.Example:443", "relay.example"),
            ("192.0.2.1:8443", "192.0.2.1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ] {
            let address: RelayAddress = text.parse().unwrap();
            assert_eq!(address.host(), host);
            assert_eq!(address.to_string(), text.to_ascii_lowercase());
        }
        for wrong in [
            "",
            "host",
            "host:",
            "host:0",
            "host:70000",
            "2001:db8::1:443",
            "[::1",
            "a b:1",
            ":443",
            "-a-.x_:y",
        ] {
            assert!(wrong.parse::<RelayAddress>().is_err(), "{wrong}");
        }
    }
}
