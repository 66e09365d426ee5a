//! Tokens: what a relay signed, and by which it lets a device in without keeping anything of it.
//!
//! A token is a bearer's secret: whoever has it is its user. It is never printed but inside of an
//! invite, and its [`Debug`] form hides it.

use std::fmt;

use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use thiserror::Error;

/// The one layout there is.
const VERSION: u8 = 1;

/// Most octets of a name.
pub const LONGEST_NAME: usize = 64;

/// Octets of an Ed25519 signature (RFC 8032 section 5.1.6).
const SIGNATURE: usize = 64;

/// Stands in front of what is signed, so that no signature of this key means anything else.
const CONTEXT: &[u8] = b"multiway relay token\0";

/// Distinguishes tokens of one relay: random, so that no list has to be consulted to choose it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub [u8; Self::LENGTH]);

impl TokenId {
    /// Its octets.
    pub const LENGTH: usize = 8;
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for TokenId {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(TokenError::Malformed)
    }
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its number.
    pub id: TokenId,
    /// Whose it is, in the operator's words.
    pub name: String,
    /// Until when it is good, in seconds since 1970; for ever when absent.
    pub expires: Option<u64>,
    /// Bytes per calendar month (UTC), both directions together; any number when absent.
    pub monthly_bytes: Option<u64>,
}

impl Token {
    /// Whether it is good no more.
    pub fn is_expired_at(&self, unix_seconds: u64) -> bool {
        self.expires.is_some_and(|expires| unix_seconds >= expires)
    }
}

/// Why octets are no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TokenError {
    /// They are something else, or a part of one.
    #[error("its token is malformed")]
    Malformed,
    /// It is newer than this program.
    #[error("its token has a version that is not known here")]
    Version,
    /// Another key signed it, or it was changed.
    #[error("its token was not signed by this relay")]
    Signature,
}

/// A token as it travels: its words and the signature.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedToken {
    bytes: Vec<u8>,
    token: Token,
}

impl fmt::Debug for SignedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedToken({:?})", self.token)
    }
}

impl SignedToken {
    /// Reads one without checking the signature, which only the relay can trust.
    pub fn parse(bytes: &[u8]) -> Result<Self, TokenError> {
        let (words, _) = bytes.split_last_chunk::<SIGNATURE>().ok_or(TokenError::Malformed)?;
        Ok(Self { bytes: bytes.to_vec(), token: decode(words)? })
    }

    /// What it says; who believes it has checked the signature.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The octets, which are a secret.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The key that signs a relay's tokens.
pub struct TokenKey {
    pair: Ed25519KeyPair,
    document: Vec<u8>,
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

/// A key could not be made or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("it is no Ed25519 key in PKCS#8")]
pub struct KeyError;

impl TokenKey {
    /// A new key.
    pub fn generate() -> Result<Self, KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads a key.
    pub fn from_pkcs8(document: &[u8]) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8(document).map_err(|_| KeyError)?;
        Ok(Self { pair, document: document.to_vec() })
    }

    /// The key as it is kept, a secret.
    pub fn to_pkcs8(&self) -> &[u8] {
        &self.document
    }

    /// Signs a token. Of a name that is too long the beginning is kept.
    pub fn sign(&self, token: &Token) -> SignedToken {
        let mut token = token.clone();
        while token.name.len() > LONGEST_NAME {
            token.name.pop();
        }
        let mut bytes = encode(&token);
        let signature = self.pair.sign(&[CONTEXT, &bytes].concat());
        bytes.extend_from_slice(signature.as_ref());
        SignedToken { bytes, token }
    }

    /// Reads a token and checks that this key signed it.
    pub fn verify(&self, bytes: &[u8]) -> Result<Token, TokenError> {
        let (words, signature) = bytes.split_last_chunk::<SIGNATURE>().ok_or(TokenError::Malformed)?;
        UnparsedPublicKey::new(&ED25519, self.pair.public_key())
            .verify(&[CONTEXT, words].concat(), signature)
            .map_err(|_| TokenError::Signature)?;
        decode(words)
    }
}

/// Version, id, expiry and monthly bytes (64 bits each, network order, 0 for none), length of the name, name.
fn encode(token: &Token) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&token.id.0);
    bytes.extend_from_slice(&token.expires.unwrap_or(0).to_be_bytes());
    bytes.extend_from_slice(&token.monthly_bytes.unwrap_or(0).to_be_bytes());
    bytes.push(u8::try_from(token.name.len()).expect("a name is cut to its bound before"));
    bytes.extend_from_slice(token.name.as_bytes());
    bytes
}

fn decode(words: &[u8]) -> Result<Token, TokenError> {
    let (&version, rest) = words.split_first().ok_or(TokenError::Malformed)?;
    if version != VERSION {
        return Err(TokenError::Version);
    }
    let (id, rest) = rest.split_first_chunk().ok_or(TokenError::Malformed)?;
    let (expires, rest) = rest.split_first_chunk().ok_or(TokenError::Malformed)?;
    let (monthly_bytes, rest) = rest.split_first_chunk().ok_or(TokenError::Malformed)?;
    let (&length, name) = rest.split_first().ok_or(TokenError::Malformed)?;
    if usize::from(length) != name.len() || name.len() > LONGEST_NAME {
        return Err(TokenError::Malformed);
    }
    let name = std::str::from_utf8(name).map_err(|_| TokenError::Malformed)?;
    let some = |bytes: &[u8; 8]| Some(u64::from_be_bytes(*bytes)).filter(|&value| value != 0);
    Ok(Token {
        id: TokenId(*id),
        name: name.to_owned(),
        expires: some(expires),
        monthly_bytes: some(monthly_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { id: TokenId([1; 8]), name: "Ada".to_owned(), expires: Some(100), monthly_bytes: None }
    }

    #[test]
    fn only_the_key_that_signed_a_token_accepts_it() {
        let key = TokenKey::generate().unwrap();
        let signed = key.sign(&token());
        assert_eq!(key.verify(signed.as_bytes()), Ok(token()));
        let same = TokenKey::from_pkcs8(key.to_pkcs8()).unwrap();
        assert_eq!(same.verify(signed.as_bytes()), Ok(token()));
        let other = TokenKey::generate().unwrap();
        assert_eq!(other.verify(signed.as_bytes()), Err(TokenError::Signature));
    }

    #[test]
    fn a_token_with_any_bit_changed_is_refused() {
        let key = TokenKey::generate().unwrap();
        let signed = key.sign(&token());
        for position in 0..signed.as_bytes().len() {
            let mut changed = signed.as_bytes().to_vec();
            changed[position] ^= 1;
            assert_eq!(key.verify(&changed), Err(TokenError::Signature), "octet {position}");
            assert!(key.verify(&signed.as_bytes()[..position]).is_err());
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let key = TokenKey::generate().unwrap();
        let signed = key.sign(&Token { name: "ä".repeat(60), ..token() });
        let read = key.verify(signed.as_bytes()).unwrap();
        assert_eq!(read.name, "ä".repeat(32));
        assert_eq!(SignedToken::parse(signed.as_bytes()).unwrap().token(), &read);
    }

    #[test]
    fn a_token_expires_and_its_octets_stay_out_of_debug_output() {
        assert!(!token().is_expired_at(99) && token().is_expired_at(100));
        assert!(!Token { expires: None, ..token() }.is_expired_at(u64::MAX));
        let signed = TokenKey::generate().unwrap().sign(&token());
        let signature = format!("{:?}", &signed.as_bytes()[40..44]);
        assert!(!format!("{signed:?}").contains(signature.trim_matches(['[', ']'])));
    }
}
