//! The database file that outlives the process.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use multiway_core::paths::{DailyBytes, HistoryKey, HistoryRecord, NetworkIdentity};
use multiway_core::units::Rate;
use rusqlite::{Connection, ErrorCode, Row, params};
use thiserror::Error;

/// Most records read back; as many as are held in memory.
pub(super) const CAPACITY: usize = 20_000;

/// Version of the tables below, kept in the file's `user_version`.
const SCHEMA_VERSION: i64 = 1;

/// Another Multiway of the same user may be writing.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS history (
        network TEXT NOT NULL, destination TEXT NOT NULL, rtt_us INTEGER, bits_per_second INTEGER,
        loss_ppm INTEGER, connect_us INTEGER, weight_bytes INTEGER NOT NULL, count INTEGER NOT NULL,
        last_seen INTEGER NOT NULL, PRIMARY KEY (network, destination)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS inconsistent (
        network TEXT NOT NULL, host TEXT NOT NULL, expiry INTEGER NOT NULL,
        PRIMARY KEY (network, host)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS usage (
        interface TEXT NOT NULL PRIMARY KEY, day INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
    PRAGMA user_version = 1;";

/// Why there is no database.
#[derive(Debug, Error)]
pub(super) enum StoreError {
    #[error("{} cannot be used: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{} cannot be used: {source}", file.display())]
    Database { file: PathBuf, source: rusqlite::Error },
}

/// What was read back.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    pub(super) records: Vec<(HistoryKey, HistoryRecord)>,
    pub(super) inconsistent: Vec<(NetworkIdentity, String, u64)>,
    pub(super) usage: Vec<(String, DailyBytes)>,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) records: BTreeMap<HistoryKey, HistoryRecord>,
    /// When the mark of a pair expires.
    pub(super) inconsistent: BTreeMap<(NetworkIdentity, String), u64>,
    /// Bytes to add, by interface and day.
    pub(super) usage: BTreeMap<(String, u64), u64>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.inconsistent.is_empty() && self.usage.is_empty()
    }

    pub(super) fn absorb(&mut self, newer: Self) {
        self.records.extend(newer.records);
        self.inconsistent.extend(newer.inconsistent);
        for (key, bytes) in newer.usage {
            *self.usage.entry(key).or_default() += bytes;
        }
    }
}

/// An open database.
#[derive(Debug)]
pub(super) struct Store {
    connection: Connection,
}

impl Store {
    /// Opens or makes `file` and reads it. A file that is damaged, or of another version, is
    /// renamed and a new one made.
    pub(super) fn open(file: &Path, now: u64) -> Result<(Self, Remembered), StoreError> {
        match Self::open_as_is(file, now) {
            Err(StoreError::Database { source, .. }) if is_damage(&source) => {
                set_aside(file, now, &source)?;
                Self::open_as_is(file, now)
            }
            result => result,
        }
    }

    fn open_as_is(file: &Path, now: u64) -> Result<(Self, Remembered), StoreError> {
        prepare(file).map_err(|source| StoreError::File { file: file.to_owned(), source })?;
        let read = || {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            // A crash may cost the last seconds of measurements, never the file (sqlite.org/wal.html).
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            check(&connection)?;
            let store = Self { connection };
            let remembered = store.read(now)?;
            Ok((store, remembered))
        };
        read().map_err(|source| StoreError::Database { file: file.to_owned(), source })
    }

    fn read(&self, now: u64) -> rusqlite::Result<Remembered> {
        let now = to_sql(now);
        self.connection.execute("DELETE FROM inconsistent WHERE expiry <= ?1", [now])?;
        self.connection.execute(
            "DELETE FROM history WHERE (network, destination) NOT IN
             (SELECT network, destination FROM history ORDER BY last_seen DESC LIMIT ?1)",
            [to_sql(CAPACITY as u64)],
        )?;
        let records = self.rows("SELECT * FROM history ORDER BY last_seen", |row| {
            let micros = |column| unsigned(row, column).map(|us| us.map(Duration::from_micros));
            let key = HistoryKey {
                network: NetworkIdentity(row.get("network")?),
                destination: row.get("destination")?,
            };
            let record = HistoryRecord {
                rtt: micros("rtt_us")?,
                throughput: unsigned(row, "bits_per_second")?.map(Rate::from_bits_per_second),
                loss_ppm: unsigned(row, "loss_ppm")?.and_then(|ppm| u32::try_from(ppm).ok()),
                connect_time: micros("connect_us")?,
                weight_bytes: unsigned(row, "weight_bytes")?.unwrap_or(0),
                count: unsigned(row, "count")?.unwrap_or(0),
                last_seen: unsigned(row, "last_seen")?.unwrap_or(0),
            };
            Ok((key, record))
        })?;
        let inconsistent = self.rows("SELECT * FROM inconsistent", |row| {
            let expiry = unsigned(row, "expiry")?.unwrap_or(0);
            Ok((NetworkIdentity(row.get("network")?), row.get("host")?, expiry))
        })?;
        let usage = self.rows("SELECT * FROM usage", |row| {
            let (day, bytes) = (unsigned(row, "day")?.unwrap_or(0), unsigned(row, "bytes")?.unwrap_or(0));
            Ok((row.get("interface")?, DailyBytes::new(day, bytes)))
        })?;
        Ok(Remembered { records, inconsistent, usage })
    }

    fn rows<T>(
        &self,
        sql: &str,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.connection.prepare(sql)?.query_map([], read)?.collect()
    }

    /// Writes all of `changes` or nothing.
    pub(super) fn write(&mut self, changes: &Changes) -> rusqlite::Result<()> {
        let micros =
            |duration: Option<Duration>| duration.map(|d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX));
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction
                .prepare("INSERT OR REPLACE INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?;
            for (key, record) in &changes.records {
                insert.execute(params![
                    key.network.0,
                    key.destination,
                    micros(record.rtt),
                    record.throughput.map(|rate| to_sql(rate.bits_per_second())),
                    record.loss_ppm,
                    micros(record.connect_time),
                    to_sql(record.weight_bytes),
                    to_sql(record.count),
                    to_sql(record.last_seen),
                ])?;
            }
            let mut insert =
                transaction.prepare("INSERT OR REPLACE INTO inconsistent VALUES (?1, ?2, ?3)")?;
            for ((network, host), expiry) in &changes.inconsistent {
                insert.execute(params![network.0, host, to_sql(*expiry)])?;
            }
            // Added up, since several processes may count the same interface.
            let mut insert = transaction.prepare(
                "INSERT INTO usage VALUES (?1, ?2, ?3) ON CONFLICT (interface) DO UPDATE SET
                 bytes = excluded.bytes + iif(day = excluded.day, bytes, 0), day = excluded.day",
            )?;
            for ((interface, day), bytes) in &changes.usage {
                insert.execute(params![interface, to_sql(*day), to_sql(*bytes)])?;
            }
        }
        transaction.commit()
    }
}

/// Makes the directory and the file, for the owner's eyes only: it tells which hosts were visited.
fn prepare(file: &Path) -> io::Result<()> {
    if let Some(directory) = file.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(file).map(drop)
}

/// Makes the tables where there are none, and looks for damage where there are.
fn check(connection: &Connection) -> rusqlite::Result<()> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" || ![0, SCHEMA_VERSION].contains(&version) {
        let reason = if verdict == "ok" { format!("it is of version {version}") } else { verdict };
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error { code: ErrorCode::DatabaseCorrupt, extended_code: 0 },
            Some(reason),
        ));
    }
    connection.execute_batch(SCHEMA)
}

/// True when the file itself is at fault, rather than the disk or a permission.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(error, _) => {
            matches!(error.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown)
        }
        // A table that is not as made here, or holds what was never written.
        rusqlite::Error::InvalidColumnName(_)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::SqlInputError { .. } => true,
        _ => false,
    }
}

/// Renames a damaged database and throws its journal away.
fn set_aside(file: &Path, now: u64, reason: &rusqlite::Error) -> Result<(), StoreError> {
    let sibling = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let kept = sibling(&format!(".damaged-{now}"));
    tracing::warn!(file = %file.display(), kept = %kept.display(), %reason,
        "the history of paths is damaged; it is put aside and a new one begun");
    std::fs::rename(file, &kept).map_err(|source| StoreError::File { file: file.to_owned(), source })?;
    for journal in [sibling("-wal"), sibling("-shm")] {
        // Usually there is none.
        let _ = std::fs::remove_file(journal);
    }
    Ok(())
}

/// SQLite's integers are signed; nothing stored comes near the limit.
fn to_sql(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A column's value; nothing when it is absent or negative.
fn unsigned(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.and_then(|value| u64::try_from(value).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn changes(count: u64) -> Changes {
        let records = (0..count).map(|n| {
            let key =
                HistoryKey { network: NetworkIdentity("home".to_owned()), destination: format!("host{n}") };
            let record = HistoryRecord {
                rtt: Some(Duration::from_millis(n)),
                throughput: Some(Rate::from_bits_per_second(n)),
                loss_ppm: None,
                connect_time: Some(Duration::from_micros(n)),
                weight_bytes: n,
                count: 1,
                last_seen: NOW - n,
            };
            (key, record)
        });
        Changes { records: records.collect(), ..Changes::default() }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let directory = tempfile::tempdir().expect("a writable directory for temporary files");
        let file = directory.path().join("history.db");
        let (mut store, nothing) = Store::open(&file, NOW).expect("a new file");
        assert!(nothing.records.is_empty());
        let mut written = changes(50);
        let home = NetworkIdentity("home".to_owned());
        written.inconsistent.insert((home.clone(), "soon".to_owned()), NOW + 10);
        written.inconsistent.insert((home, "later".to_owned()), NOW + 1000);
        written.usage.insert(("lo".to_owned(), 20), 5);
        store.write(&written).expect("room");
        store.write(&written).expect("room");
        drop(store);

        let (_, read) = Store::open(&file, NOW + 100).expect("just written");
        assert_eq!(read.records.into_iter().collect::<BTreeMap<_, _>>(), written.records);
        assert_eq!(read.inconsistent.len(), 1);
        assert_eq!(read.usage, [("lo".to_owned(), DailyBytes::new(20, 10))]);
    }

    #[test]
    fn a_full_disk_fails_the_write_as_a_whole_and_not_the_next() {
        let directory = tempfile::tempdir().expect("a writable directory for temporary files");
        let file = directory.path().join("history.db");
        let (mut store, _) = Store::open(&file, NOW).expect("a new file");
        let limit = |store: &Store, pages: i64| {
            store
                .connection
                .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get::<_, i64>(0))
        };
        limit(&store, 1).expect("a limit");
        let error = store.write(&changes(1000)).expect_err("no room");
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DiskFull));
        assert!(!is_damage(&error));
        assert!(store.read(NOW).expect("readable").records.is_empty());
        limit(&store, 1_000_000).expect("a limit");
        store.write(&changes(1000)).expect("room");
        assert_eq!(store.read(NOW).expect("readable").records.len(), 1000);
    }

    #[test]
    fn a_file_of_another_version_or_shape_is_put_aside() {
        let directory = tempfile::tempdir().expect("a writable directory for temporary files");
        for (name, sql) in [
            ("version", "PRAGMA user_version = 77;"),
            (
                "shape",
                "CREATE TABLE history (network TEXT, destination TEXT, last_seen TEXT);
                INSERT INTO history VALUES (x'00', 'b', 'c');",
            ),
        ] {
            let file = directory.path().join(name);
            Connection::open(&file).and_then(|other| other.execute_batch(sql)).expect("a new file");
            let (mut store, _) = Store::open(&file, NOW).expect("put aside");
            store.write(&changes(1)).expect("room");
            assert!(directory.path().join(format!("{name}.damaged-{NOW}")).exists());
        }
    }

    #[test]
    fn only_the_owner_may_read_where_one_has_been() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a writable directory for temporary files");
        let file = directory.path().join("state/history.db");
        Store::open(&file, NOW).expect("a new file");
        let mode = |path: &Path| std::fs::metadata(path).expect("made").permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        assert_eq!(mode(file.parent().expect("it has one")), 0o700);
    }
}
