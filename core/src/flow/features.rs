//! The flow-feature database (FLEETY section 4.1): rules that say which HTTP requests are worth splitting
//! and which carry name answers. A TOML file, so that it can be updated without the program.
//!
//! ```toml
//! [[rule]]
//! name = "releases"
//! host = "*.example.org"            # optional; `*` any characters, `?` one
//! path = "/pub/*"                   # optional; matched without the query
//! extensions = ["iso", "tar.xz"]    # optional; the end of the path
//! header = { name = "Accept", contains = "video/" }   # optional; of the request
//! action = "split"                  # or "pass", or "dns-answer"
//! minimum_size = "256KB"            # for split; 1 MB when left out
//! open_all_paths_at_once = true     # for split; further paths need not wait for the first head
//!
//! [[rule]]
//! name = "a provider's HTTP DNS"
//! host = "203.0.113.1"
//! path = "/d"
//! action = "dns-answer"
//! answer = { format = "json", entries = "dns", name = "host", addresses = "ips", ttl = "ttl" }
//! ```

use std::fmt;

use serde::Deserialize;
use toml::Spanned;

use super::glob;
use super::http_dns::{AnswerFormat, RawAnswerFormat};
use crate::mphttp::http::RequestHead;

/// Fewest bytes that are split when a rule does not say: what one path brings while another's connection
/// is set up, at tens of Mbit/s and tens of milliseconds.
pub const DEFAULT_MINIMUM_SIZE: u64 = 1_000_000;

/// Most rules in a file; every request is compared with each.
const MAX_RULES: usize = 1000;

const BUILT_IN: &str = include_str!("default-features.toml");

/// Why a feature file is refused. The set in use stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {}{message}", rule.as_ref().map(|rule| format!("rule {rule}: ")).unwrap_or_default())]
pub struct FeatureError {
    /// The line, from 1.
    pub line: usize,
    /// The rule's name in quotation marks, or its number from 1; `None` outside of rules.
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Split the answer over paths, when it has this many bytes.
    Split {
        /// Fewest bytes worth it.
        minimum_size: u64,
        /// Whether further paths may start before the first path's response head has come.
        open_all_paths_at_once: bool,
    },
    /// Leave it on one path.
    Pass,
    /// Leave it on one path and learn names from its answer.
    DnsAnswer(AnswerFormat),
}

/// A rule's verdict on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The rule that matched; `None` when none did.
    pub rule: Option<String>,
    /// What to do.
    pub action: Action,
}

/// Rules, in the order they are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureDatabase {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    name: String,
    host: Option<String>,
    path: Option<String>,
    extensions: Option<Vec<String>>,
    header: Option<HeaderPattern>,
    action: Action,
}

impl FeatureDatabase {
    /// The rules that come with Multiway.
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN).expect("a test parses the built-in rules")
    }

    /// Reads a feature file.
    pub fn parse(text: &str) -> Result<Self, FeatureError> {
        let at = |offset: usize, message: String| FeatureError {
            line: 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&b| b == b'\n').count(),
            rule: rule_at(text, offset),
            message,
        };
        let file: RawFile = toml::from_str(text)
            .map_err(|error| at(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
        if file.rule.len() > MAX_RULES {
            return Err(at(0, format!("more than {MAX_RULES} rules")));
        }
        let mut rules = Vec::<Rule>::with_capacity(file.rule.len());
        for raw in file.rule {
            let offset = raw.span().start;
            let rule = Rule::try_from(raw.into_inner()).map_err(|message| at(offset, message))?;
            if rules.iter().any(|other| other.name == rule.name) {
                return Err(at(offset, "another rule has this name".to_owned()));
            }
            rules.push(rule);
        }
        Ok(Self { rules })
    }

    /// These rules, then those of `fallback`.
    pub fn followed_by(mut self, fallback: Self) -> Self {
        self.rules.extend(fallback.rules);
        self
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the first rule that matches `request` to `host` says; [`Action::Pass`] when none does.
    /// `host` is the name the caller knows, which may come from DNS rather than from the request.
    pub fn decide(&self, request: &RequestHead, host: &str) -> Decision {
        let target = request.path();
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let host = host.to_ascii_lowercase();
        match self.rules.iter().find(|rule| rule.matches(request, &host, path)) {
            Some(rule) => Decision { rule: Some(rule.name.clone()), action: rule.action.clone() },
            None => Decision { rule: None, action: Action::Pass },
        }
    }
}

impl Rule {
    fn matches(&self, request: &RequestHead, host: &str, path: &str) -> bool {
        self.host.as_ref().is_none_or(|pattern| glob::matches(pattern, host))
            && self.path.as_ref().is_none_or(|pattern| glob::matches(pattern, path))
            && self.extensions.as_ref().is_none_or(|list| list.iter().any(|e| has_extension(path, e)))
            && self.header.as_ref().is_none_or(|header| header.matches(request))
    }
}

/// True when `path` ends in a dot and `extension`, compared without case.
fn has_extension(path: &str, extension: &str) -> bool {
    let (path, extension) = (path.as_bytes(), extension.as_bytes());
    path.len()
        .checked_sub(extension.len() + 1)
        .is_some_and(|dot| path[dot] == b'.' && path[dot + 1..].eq_ignore_ascii_case(extension))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderPattern {
    name: String,
    contains: String,
}

impl HeaderPattern {
    fn matches(&self, request: &RequestHead) -> bool {
        let wanted = self.contains.as_bytes();
        let contains = |value: &[u8]| {
            wanted.is_empty() || value.windows(wanted.len()).any(|w| w.eq_ignore_ascii_case(wanted))
        };
        request.headers().get_all(&self.name).any(contains)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    rule: Vec<Spanned<RawRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: String,
    host: Option<String>,
    path: Option<String>,
    extensions: Option<Vec<String>>,
    header: Option<HeaderPattern>,
    minimum_size: Option<Size>,
    open_all_paths_at_once: Option<bool>,
    action: RawAction,
    answer: Option<RawAnswerFormat>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum RawAction {
    Split,
    Pass,
    DnsAnswer,
}

impl TryFrom<RawRule> for Rule {
    type Error = String;

    fn try_from(raw: RawRule) -> Result<Self, String> {
        if raw.name.is_empty() {
            return Err("`name` is empty".to_owned());
        }
        if raw.action != RawAction::Split
            && (raw.minimum_size.is_some() || raw.open_all_paths_at_once.is_some())
        {
            return Err("`minimum_size` and `open_all_paths_at_once` are for `action = \"split\"`".to_owned());
        }
        let action = match (raw.action, raw.answer) {
            (RawAction::Split, None) => Action::Split {
                minimum_size: raw.minimum_size.map_or(DEFAULT_MINIMUM_SIZE, |Size(bytes)| bytes),
                open_all_paths_at_once: raw.open_all_paths_at_once.unwrap_or(false),
            },
            (RawAction::Pass, None) => Action::Pass,
            (RawAction::DnsAnswer, Some(answer)) => Action::DnsAnswer(answer.try_into()?),
            (RawAction::DnsAnswer, None) => return Err("`action = \"dns-answer\"` needs `answer`".to_owned()),
            (_, Some(_)) => return Err("`answer` is for `action = \"dns-answer\"`".to_owned()),
        };
        let extensions = raw.extensions.map(|list| {
            list.into_iter().map(|e| e.strip_prefix('.').map_or(e.clone(), str::to_owned)).collect::<Vec<_>>()
        });
        if extensions.as_ref().is_some_and(|list| list.is_empty() || list.iter().any(String::is_empty)) {
            return Err("`extensions` has none, or an empty one".to_owned());
        }
        let host = raw.host.map(|host| host.to_ascii_lowercase());
        Ok(Self { name: raw.name, host, path: raw.path, extensions, header: raw.header, action })
    }
}

/// A number of bytes: a whole number, or a text such as `256KB` (powers of 1000) or `1MiB` (of 1024).
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"256KB\", \"1MiB\" or a number of bytes")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Size, E> {
                u64::try_from(value).map(Size).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                parse_size(text)
                    .map(Size)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// The rule that the text at `offset` belongs to, as a reader would find it: by the last `[[rule]]` above
/// and the first `name` below that. The parser's own view is gone when parsing failed.
fn rule_at(text: &str, offset: usize) -> Option<String> {
    let is_start = |line: &str| line.trim_start().starts_with("[[rule]]");
    let mut start = 0;
    let mut rules = Vec::new();
    for line in text.split_inclusive('\n') {
        if is_start(line) && start <= offset {
            rules.push(start);
        }
        start += line.len();
    }
    let number = rules.len();
    let block = &text[*rules.last()?..];
    let name = block.lines().skip(1).take_while(|line| !is_start(line)).find_map(|line| {
        let value = line.trim_start().strip_prefix("name")?.trim_start().strip_prefix('=')?.trim_start();
        value.strip_prefix('"').and_then(|rest| rest.split_once('"')).map(|(name, _)| format!("\"{name}\""))
    });
    Some(name.unwrap_or_else(|| number.to_string()))
}

#[cfg(test)]
mod tests;
