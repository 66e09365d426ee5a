//! What DNS answered, per path (FLEETY section 4.2).
//!
//! Each query goes out on every path, and a content network answers each path with the server
//! nearest to it. [`NameMemory`] keeps those answers apart, so that an intercepted connection to
//! an address leads back to the name, and from the name to every path's own server.
//!
//! Answers are not trusted alike. One that looks tampered with gets a [`Suspicion`] and stands
//! back behind any answer of another path that has none; when every path's answer is suspect, as
//! in a network that really is private, each path keeps its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::paths::{Family, PathId};
use crate::units::Timestamp;

/// Longest life believed of a record: RFC 8767 section 4 advises a cap of this order.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// How long past its life an address still leads back to its name: applications hold on to
/// addresses, and browsers are known to pin them for minutes.
const LINGER: Duration = Duration::from_secs(3600);

/// Addresses kept of one answer; RFC 1035 UDP answers carry fewer than this.
const MAX_ADDRESSES: usize = 64;

/// Names kept for one address; shared hosting puts thousands of names on one.
const MAX_NAMES_PER_ADDRESS: usize = 8;

/// Paths kept for one name; devices with more are not known, and forgotten paths make room.
const MAX_PATHS_PER_NAME: usize = 32;

/// A host name in its canonical form: lower case, no trailing dot, of valid length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

/// Text that is no host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a host name: {0:?}")]
pub struct InvalidHostName(String);

impl HostName {
    /// Reads a name; limits are RFC 1035 section 2.3.4.
    ///
    /// Underscores are let through, as many resolvable names have them.
    pub fn parse(text: &str) -> Result<Self, InvalidHostName> {
        let invalid = || InvalidHostName(text.chars().take(300).collect());
        let name = text.strip_suffix('.').unwrap_or(text);
        let label_is_valid = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if name.is_empty() || name.len() > 253 || !name.split('.').all(label_is_valid) {
            return Err(invalid());
        }
        Ok(Self(name.to_ascii_lowercase().into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// False for names that by convention or RFC have no meaning outside a private network:
    /// single labels and RFC 6761, RFC 6762, RFC 8375 and ICANN's `.internal`.
    pub fn is_public(&self) -> bool {
        const PRIVATE: [&str; 10] = [
            "local",
            "localhost",
            "internal",
            "lan",
            "home",
            "corp",
            "test",
            "localdomain",
            "home.arpa",
            "onion",
        ];
        let in_zone =
            |zone: &str| self.0.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.0.contains('.') && !PRIVATE.into_iter().any(in_zone)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Address families, which DNS asks for one by one, in the order addresses are given out.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What a path's server said of a name and family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has these addresses; none when the name exists without any of this family.
    Addresses(Vec<IpAddr>),
    /// The name does not exist (NXDOMAIN).
    NoSuchName,
}

/// Why an answer is not believed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspicion {
    /// An address on which no server can be: unspecified, loopback, multicast, broadcast.
    Bogus(IpAddr),
    /// A private-range address for a public name.
    PrivateAddress(IpAddr),
    /// The name does not exist here, and another path found it.
    DifferingNxdomain,
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bogus(address) => write!(f, "{address} cannot be a server"),
            Self::PrivateAddress(address) => {
                write!(f, "{address} is a private address, the name is public")
            }
            Self::DifferingNxdomain => f.write_str("no such name here, another path found it"),
        }
    }
}

/// What is wrong with `outcome` by itself, if anything.
pub fn suspicion_of(name: &HostName, outcome: &Outcome) -> Option<Suspicion> {
    let Outcome::Addresses(addresses) = outcome else { return None };
    let bogus = addresses.iter().copied().find(|a| name.as_str() != "localhost" && is_no_host(*a));
    bogus.map(Suspicion::Bogus).or_else(|| {
        let private = addresses.iter().copied().find(|a| name.is_public() && is_private(*a));
        private.map(Suspicion::PrivateAddress)
    })
}

/// True for addresses on which no server of another host can be: unspecified, loopback, multicast,
/// broadcast.
pub fn is_no_host(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.is_loopback() || v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_loopback() || v6.is_multicast(),
    }
}

fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            // RFC 6598, the carrier's side of a NAT.
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_private() || v4.is_link_local() || is_shared
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

/// What the memory says of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The addresses or their absence.
    pub outcome: Outcome,
    /// The path whose server said so: another than asked for, when the asked one's is suspect.
    pub from: PathId,
    /// Until when it holds.
    pub expires: Timestamp,
}

#[derive(Debug, Clone)]
struct Record {
    outcome: Outcome,
    suspicion: Option<Suspicion>,
    learned: Timestamp,
    expires: Timestamp,
}

impl Record {
    fn found(&self) -> bool {
        matches!(&self.outcome, Outcome::Addresses(addresses) if !addresses.is_empty())
    }
}

#[derive(Debug, Default)]
struct Entry {
    records: BTreeMap<(Family, PathId), Record>,
    last_learned: Timestamp,
}

/// Answers per name and path, bounded in size, forgotten in time.
#[derive(Debug)]
pub struct NameMemory {
    capacity: usize,
    entries: BTreeMap<HostName, Entry>,
    by_age: BTreeSet<(Timestamp, HostName)>,
    /// Names an address was an answer to, the most recent last.
    names: BTreeMap<IpAddr, Vec<HostName>>,
}

impl NameMemory {
    /// An empty memory for at most `capacity` names.
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, entries: BTreeMap::new(), by_age: BTreeSet::new(), names: BTreeMap::new() }
    }

    /// Names held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when nothing is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes in what `path`'s server said of `name`, replacing what it said before.
    pub fn remember(
        &mut self,
        name: &HostName,
        family: Family,
        path: PathId,
        mut outcome: Outcome,
        ttl: Duration,
        now: Timestamp,
    ) {
        self.make_room(name, now);
        if let Outcome::Addresses(addresses) = &mut outcome {
            addresses.retain(|address| Family::of(*address) == family);
            addresses.truncate(MAX_ADDRESSES);
        }
        let record = Record {
            suspicion: suspicion_of(name, &outcome),
            outcome,
            learned: now,
            expires: now + ttl.min(MAX_TTL),
        };
        let addresses = match &record.outcome {
            Outcome::Addresses(addresses) => addresses.clone(),
            Outcome::NoSuchName => Vec::new(),
        };

        let entry = self.entries.entry(name.clone()).or_default();
        self.by_age.remove(&(entry.last_learned, name.clone()));
        entry.last_learned = now;
        self.by_age.insert((now, name.clone()));
        let mut dropped = Vec::new();
        if entry.records.len() >= MAX_PATHS_PER_NAME * FAMILIES.len()
            && !entry.records.contains_key(&(family, path))
        {
            let oldest = entry.records.iter().min_by_key(|(_, record)| record.learned);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                dropped.extend(entry.records.remove(&key));
            }
        }
        dropped.extend(entry.records.insert((family, path), record));
        self.unlink(name, dropped);
        for address in addresses {
            let names = self.names.entry(address).or_default();
            names.retain(|other| other != name);
            if names.len() >= MAX_NAMES_PER_ADDRESS {
                names.remove(0);
            }
            names.push(name.clone());
        }
    }

    /// What is known of `name` for use on `path`.
    ///
    /// The path's own answer comes first; if it is suspect or says that there is nothing, and
    /// another path has an unsuspected one with addresses, that one. `None` when the path has not
    /// asked lately.
    pub fn lookup(&self, name: &HostName, family: Family, path: PathId, now: Timestamp) -> Option<Known> {
        let entry = self.entries.get(name)?;
        let fresh = |record: &&Record| now < record.expires;
        let own = entry.records.get(&(family, path)).filter(fresh)?;
        let refused = own.outcome == Outcome::NoSuchName;
        let better = (own.suspicion.is_some() || refused)
            .then(|| {
                Self::of_family(entry, family)
                    .filter(|(_, record)| fresh(record))
                    .find(|(_, record)| record.suspicion.is_none() && record.found())
            })
            .flatten();
        let (from, record) = better.unwrap_or((path, own));
        Some(Known { outcome: record.outcome.clone(), from, expires: record.expires })
    }

    /// Addresses of both families for `name` on `path`, IPv4 first; `None` when none is known.
    pub fn addresses(&self, name: &HostName, path: PathId, now: Timestamp) -> Option<Vec<IpAddr>> {
        let found: Vec<IpAddr> = FAMILIES
            .into_iter()
            .filter_map(|family| self.lookup(name, family, path, now))
            .filter_map(|known| match known.outcome {
                Outcome::Addresses(addresses) => Some(addresses),
                Outcome::NoSuchName => None,
            })
            .flatten()
            .collect();
        (!found.is_empty()).then_some(found)
    }

    /// The name to which `address` was most recently an answer.
    ///
    /// It holds for a while after the answer expired, as applications reuse addresses.
    pub fn name_of(&self, address: IpAddr, now: Timestamp) -> Option<&HostName> {
        let names = self.names.get(&address)?;
        names.iter().rev().find(|name| self.is_answer(name, address, now))
    }

    /// True when some path was told lately that `name` has `address`.
    ///
    /// This, and not [`Self::name_of`], is what a connection may be led elsewhere by: whoever owns a
    /// name can give it another's address on one path, and an own one on the next.
    pub fn is_answer(&self, name: &HostName, address: IpAddr, now: Timestamp) -> bool {
        self.entries.get(name).is_some_and(|entry| {
            entry.records.values().any(|record| {
                now < record.expires + LINGER
                    && matches!(&record.outcome, Outcome::Addresses(a) if a.contains(&address))
            })
        })
    }

    /// Suspicions about the answers held for `name`.
    pub fn suspicions(&self, name: &HostName, now: Timestamp) -> Vec<(PathId, Suspicion)> {
        let Some(entry) = self.entries.get(name) else { return Vec::new() };
        let fresh = |record: &Record| now < record.expires;
        let found = entry.records.values().any(|r| fresh(r) && r.suspicion.is_none() && r.found());
        let mut suspicions: Vec<_> = entry
            .records
            .iter()
            .filter(|(_, record)| fresh(record))
            .filter_map(|(&(_, path), record)| {
                let differs = found && record.outcome == Outcome::NoSuchName;
                let suspicion = record.suspicion.or(differs.then_some(Suspicion::DifferingNxdomain))?;
                Some((path, suspicion))
            })
            .collect();
        suspicions.sort_unstable();
        suspicions.dedup();
        suspicions
    }

    /// Forgets every answer of `path`, for instance when it joined another network.
    pub fn forget_path(&mut self, path: PathId) {
        let mut dropped = Vec::new();
        for (name, entry) in &mut self.entries {
            for family in FAMILIES {
                if let Some(record) = entry.records.remove(&(family, path)) {
                    dropped.push((name.clone(), record));
                }
            }
        }
        for (name, record) in dropped {
            self.unlink(&name, vec![record]);
            if self.entries.get(&name).is_some_and(|entry| entry.records.is_empty()) {
                self.forget(&name);
            }
        }
    }

    fn of_family(entry: &Entry, family: Family) -> impl Iterator<Item = (PathId, &Record)> {
        entry
            .records
            .range((family, PathId(0))..=(family, PathId(u32::MAX)))
            .map(|(&(_, path), record)| (path, record))
    }

    /// Drops the names that led nowhere for long, and the oldest when full.
    fn make_room(&mut self, coming: &HostName, now: Timestamp) {
        while let Some((_, oldest)) = self.by_age.first() {
            let is_new = !self.entries.contains_key(coming);
            let is_full = is_new && self.entries.len() >= self.capacity.max(1);
            let is_stale = self
                .entries
                .get(oldest)
                .is_none_or(|entry| entry.records.values().all(|r| r.expires + LINGER <= now));
            if !is_full && !is_stale {
                break;
            }
            let oldest = oldest.clone();
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, name: &HostName) {
        if let Some(entry) = self.entries.remove(name) {
            self.by_age.remove(&(entry.last_learned, name.clone()));
            self.unlink(name, entry.records.into_values().collect());
        }
    }

    /// Takes `name` from the addresses of `dropped` that no record left of it has.
    fn unlink(&mut self, name: &HostName, dropped: Vec<Record>) {
        for record in dropped {
            let Outcome::Addresses(addresses) = record.outcome else { continue };
            for address in addresses {
                let is_held = self.entries.get(name).is_some_and(|entry| {
                    entry
                        .records
                        .values()
                        .any(|r| matches!(&r.outcome, Outcome::Addresses(a) if a.contains(&address)))
                });
                if is_held {
                    continue;
                }
                if let Some(names) = self.names.get_mut(&address) {
                    names.retain(|other| other != name);
                    if names.is_empty() {
                        self.names.remove(&address);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
