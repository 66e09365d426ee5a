//! A relay's users, as its operator sees them: who was invited, who was shut out, who used how much.
//!
//! Nobody has to be listed to be let in: the signature of the token does that, so that relays with the
//! same keys need no common list. What the list adds is names to show, and revocation.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::identity::{Identity, StateError, lock};
use crate::bond::token::{SignedToken, Token, TokenId};
use crate::private;

const USERS_FILE: &str = "users.json";
const USAGE_FILE: &str = "usage.json";

/// One user, as kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The number of the user's token, in hexadecimal digits.
    pub id: String,
    /// The name the operator gave.
    pub name: String,
    /// When the invite was made, in seconds since 1970.
    pub created: u64,
    /// Until when the token is good; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Bytes per calendar month; any number when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monthly_bytes: Option<u64>,
    /// When the token was revoked, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct UsersFile {
    users: Vec<User>,
}

/// What users moved, per token, in the calendar month named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The month, as `2026-11`, in UTC.
    pub month: String,
    /// Payload bytes of streams in both directions, by the number of the token.
    pub bytes: BTreeMap<String, u64>,
}

impl Usage {
    /// What a user moved in `month`.
    pub fn of(&self, id: &str, month: &str) -> u64 {
        if self.month == month { self.bytes.get(id).copied().unwrap_or(0) } else { 0 }
    }

    /// Counts bytes; the first ones of a new month begin at nothing.
    pub fn add(&mut self, id: TokenId, bytes: u64, month: &str) {
        if self.month != month {
            *self = Self { month: month.to_owned(), bytes: BTreeMap::new() };
        }
        *self.bytes.entry(id.to_string()).or_default() += bytes;
    }
}

/// What a new user is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The operator's name for the user.
    pub name: String,
    /// Until when, in seconds since 1970; for ever when absent.
    pub expires: Option<u64>,
    /// Bytes per calendar month; any number when absent.
    pub monthly_bytes: Option<u64>,
}

/// Makes a token, and lists its user.
pub fn invite(state: &Path, identity: &Identity, grant: &Grant) -> Result<SignedToken, StateError> {
    let token = identity.tokens.sign(&Token {
        id: TokenId(rand::random()),
        name: grant.name.clone(),
        expires: grant.expires,
        monthly_bytes: grant.monthly_bytes,
    });
    change(state, |users| {
        let Token { id, name, expires, monthly_bytes } = token.token();
        users.push(User {
            id: id.to_string(),
            name: name.clone(),
            created: unix_seconds(),
            expires: *expires,
            monthly_bytes: *monthly_bytes,
            revoked: None,
        });
    })?;
    Ok(token)
}

/// Everyone who was invited, the oldest first.
pub fn users(state: &Path) -> Result<Vec<User>, StateError> {
    Ok(read_json::<UsersFile>(&state.join(USERS_FILE))?.users)
}

/// Shuts out whoever has this name or number, and says who that is; those shut out before included.
pub fn revoke(state: &Path, who: &str) -> Result<Vec<User>, StateError> {
    let mut found = Vec::new();
    change(state, |users| {
        for user in users.iter_mut().filter(|user| user.id == who || user.name == who) {
            user.revoked.get_or_insert_with(unix_seconds);
            found.push(user.clone());
        }
    })?;
    Ok(found)
}

/// What was moved, as last written by the running relay.
pub fn usage(state: &Path) -> Result<Usage, StateError> {
    read_json(&state.join(USAGE_FILE))
}

pub(super) fn write_usage(state: &Path, usage: &Usage) -> Result<(), StateError> {
    write_json(&state.join(USAGE_FILE), usage)
}

pub(super) fn users_file(state: &Path) -> PathBuf {
    state.join(USERS_FILE)
}

fn change(state: &Path, change: impl FnOnce(&mut Vec<User>)) -> Result<(), StateError> {
    let _lock = lock(state)?;
    let file = state.join(USERS_FILE);
    let mut content: UsersFile = read_json(&file)?;
    change(&mut content.users);
    write_json(&file, &content)
}

fn read_json<T: Default + for<'a> Deserialize<'a>>(file: &Path) -> Result<T, StateError> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| StateError::damaged(file, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(StateError::read(file)(error)),
    }
}

fn write_json<T: Serialize>(file: &Path, content: &T) -> Result<(), StateError> {
    let text = serde_json::to_vec_pretty(content).map_err(|error| StateError::damaged(file, error))?;
    private::write(file, &text).map_err(StateError::write(file))
}

/// Seconds since 1970 by the system's clock.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The calendar month in UTC in which a moment lies, as `2026-11`.
pub fn month_of(unix_seconds: u64) -> String {
    // Days to civil date, after H. Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin
    // in March and eras have 400 years.
    const DAYS_BEFORE_1970: u64 = 719_468;
    const DAYS_OF_ERA: u64 = 146_097;
    let days = unix_seconds / 86_400 + DAYS_BEFORE_1970;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(name: &str) -> Grant {
        Grant { name: name.to_owned(), expires: None, monthly_bytes: Some(50) }
    }

    #[test]
    fn users_are_listed_and_revoked_by_name_or_number() {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(home.path()).unwrap();
        assert_eq!(users(home.path()).unwrap(), []);
        let ada = invite(home.path(), &identity, &grant("ada")).unwrap();
        let bob = invite(home.path(), &identity, &grant("bob")).unwrap();
        assert_eq!(identity.tokens.verify(ada.as_bytes()).as_ref(), Ok(ada.token()));
        assert_eq!(revoke(home.path(), "nobody").unwrap(), []);
        assert_eq!(revoke(home.path(), "ada").unwrap().len(), 1);
        assert_eq!(revoke(home.path(), &bob.token().id.to_string()).unwrap()[0].name, "bob");
        assert!(users(home.path()).unwrap().iter().all(|user| user.revoked.is_some()));
        assert_eq!(usage(home.path()).unwrap(), Usage::default());
    }

    #[test]
    fn usage_begins_anew_each_month() {
        let mut usage = Usage::default();
        let id = TokenId([1; 8]);
        usage.add(id, 5, "2026-11");
        usage.add(id, 6, "2026-11");
        assert_eq!(usage.of(&id.to_string(), "2026-11"), 11);
        assert_eq!(usage.of(&id.to_string(), "2026-12"), 0);
        usage.add(id, 1, "2026-12");
        assert_eq!(usage.of(&id.to_string(), "2026-12"), 1);
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        for (seconds, month) in [
            (0, "1970-01"),
            (951_782_399, "2000-02"),
            (951_868_799, "2000-02"),
            (951_868_800, "2000-03"),
            (1_709_164_799, "2024-02"),
            (1_709_251_200, "2024-03"),
            (1_767_225_599, "2025-12"),
            (1_767_225_600, "2026-01"),
        ] {
            assert_eq!(month_of(seconds), month, "{seconds}");
        }
    }
}
