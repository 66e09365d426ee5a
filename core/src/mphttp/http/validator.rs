//! Entity tags (RFC 9110 section 8.8.3).

/// An `ETag` value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntityTag {
    weak: bool,
    opaque: Vec<u8>,
}

impl EntityTag {
    /// Takes an `ETag` value. One without the grammar's quotes is still compared, but only as a weak tag:
    /// a server that cannot quote it is not trusted to change it with every byte.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (weak, rest) = match value.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let inner = rest.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
        match inner {
            Some(opaque) if !opaque.contains(&b'"') => Some(Self { weak, opaque: opaque.to_vec() }),
            _ if value.is_empty() => None,
            _ => Some(Self { weak: true, opaque: value.to_vec() }),
        }
    }

    /// True when equal tags do not promise equal bytes (RFC 9110 section 8.8.1).
    pub fn is_weak(&self) -> bool {
        self.weak
    }

    /// Equal and both strong: the same bytes (RFC 9110 section 8.8.3.2).
    pub fn strongly_equals(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Equal whatever their strength.
    pub fn weakly_equals(&self, other: &Self) -> bool {
        self.opaque == other.opaque
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_strong_tags_promise_the_same_bytes() {
        let tag = |text: &str| EntityTag::parse(text.as_bytes()).expect("not empty");
        assert!(tag("\"1\"").strongly_equals(&tag("\"1\"")));
        assert!(!tag("W/\"1\"").strongly_equals(&tag("\"1\"")));
        assert!(tag("W/\"1\"").weakly_equals(&tag("\"1\"")));
        assert!(!tag("\"1\"").weakly_equals(&tag("\"2\"")));
        assert!(tag("unquoted").is_weak());
        assert_eq!(EntityTag::parse(b""), None);
    }
}
