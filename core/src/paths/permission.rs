//! Which interfaces the owner lets Multiway use.

use serde::{Deserialize, Serialize};

/// A name of interfaces in which `*` stands for any characters and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InterfacePattern(pub String);

impl InterfacePattern {
    /// True when the pattern names exactly one interface.
    pub fn is_literal(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// True when `interface` fits the pattern.
    pub fn matches(&self, interface: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), interface.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Where to go back to: the last `*`, and the character it would swallow next.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(&c) if c == b'?' || c == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match &mut star {
                    Some((at, swallowed)) => {
                        *swallowed += 1;
                        p = *at + 1;
                        n = *swallowed;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|&c| c == b'*')
    }
}

impl From<&str> for InterfacePattern {
    fn from(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }
}

/// The owner's word on which interfaces may carry traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permission {
    /// When present, only interfaces that fit one of these.
    pub only: Option<Vec<InterfacePattern>>,
    /// Never interfaces that fit one of these.
    pub deny: Vec<InterfacePattern>,
}

impl Permission {
    /// True when `interface` may be used. A denial outweighs all else.
    pub fn allows(&self, interface: &str) -> bool {
        let any = |patterns: &[InterfacePattern]| patterns.iter().any(|p| p.matches(interface));
        !any(&self.deny) && self.only.as_deref().is_none_or(any)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, however slow.
    fn matches_by_definition(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|n| matches_by_definition(rest, &name[n..])),
            Some((c, rest)) => name
                .split_first()
                .is_some_and(|(n, tail)| (*c == b'?' || c == n) && matches_by_definition(rest, tail)),
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            let by_definition = matches_by_definition(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(matches(&pattern, &name), by_definition);
        }
    }

    fn matches(pattern: &str, name: &str) -> bool {
        InterfacePattern::from(pattern).matches(name)
    }

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        assert!(matches("wlan0", "wlan0"));
        assert!(!matches("wlan0", "wlan01"));
        assert!(matches("wlan*", "wlan"));
        assert!(matches("*", ""));
        assert!(matches("w*n?", "wlan0"));
        assert!(matches("*0*0", "w000"));
        assert!(!matches("w?n0", "wlan0"));
        assert!(!matches("", "a"));
    }

    #[test]
    fn a_denial_outweighs_being_listed() {
        let permission =
            Permission { only: Some(vec!["wlan*".into(), "eth0".into()]), deny: vec!["wlan1".into()] };
        assert!(permission.allows("wlan0"));
        assert!(permission.allows("eth0"));
        assert!(!permission.allows("wlan1"));
        assert!(!permission.allows("usb0"));
        assert!(Permission::default().allows("usb0"));
    }
}
