//! Downloads an object to a file over every path (`multiway get`).

mod error;
mod file;
mod place;
mod request;

use std::path::{Path, PathBuf};
use std::time::Duration;

use multiway_api::get::{Fallback, GetPath, GetSummary, Verification};
use multiway_core::mphttp::download::{DownloadConfig, Event, Opening, tuning};
use multiway_core::mphttp::http::{BodyReader, RequestHead, ResponseHead, connection_persists};
use multiway_core::paths::{PathId, Preference};
use multiway_core::units::Rate;
use tokio::io::AsyncReadExt;
use url::Url;

pub use error::GetError;
use file::PartialFile;

use crate::dns::Resolver;
use crate::paths::PathTable;
use crate::split::{
    OpeningConnection, Progress, SharedBuffers, Transfer, TransferConfig, TransferError, offers, remember,
};

/// Redirects followed, as many as curl's and browsers' order of magnitude.
const MOST_REDIRECTS: usize = 20;

/// Memory for bytes that arrive before their turn.
pub const DEFAULT_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

/// What to download, and how.
#[derive(Debug, Clone)]
pub struct GetOptions {
    /// `http://` or `https://`.
    pub url: String,
    /// The file to write; `-` for the standard output.
    pub file: PathBuf,
    /// How metered paths are used.
    pub preference: Preference,
    /// SHA-256 that the object must have.
    pub sha256: Option<[u8; 32]>,
    /// Go on where an earlier download of the same file stopped.
    pub resume: bool,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// Certificates to trust instead of the system's.
    pub cacert: Option<PathBuf>,
    /// Most bytes held in memory.
    pub memory_bytes: u64,
}

/// How far a download is.
#[derive(Debug, Clone)]
pub struct GetProgress {
    /// Bytes in the file.
    pub bytes: u64,
    /// Size of the object, once known.
    pub total: Option<u64>,
    /// What each path does.
    pub paths: Vec<GetPathProgress>,
}

/// What one path does for a download.
#[derive(Debug, Clone)]
pub struct GetPathProgress {
    /// Its interface.
    pub interface: String,
    /// Bytes that it brought.
    pub bytes: u64,
    /// Rate now.
    pub rate: Rate,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
}

/// Downloads one object.
pub async fn run(
    paths: PathTable,
    resolver: Resolver,
    options: GetOptions,
    on_progress: impl FnMut(GetProgress),
) -> Result<GetSummary, GetError> {
    let url = request::parse_url(&options.url)?;
    let part = PartialFile::open(&options.file, options.resume, options.sha256.is_some()).await?;
    let job =
        Job { paths, resolver, on_progress, resumed: part.length(), fallbacks: Vec::new(), part, options };
    job.run(url).await
}

struct Job<F> {
    paths: PathTable,
    resolver: Resolver,
    options: GetOptions,
    on_progress: F,
    part: PartialFile,
    resumed: u64,
    fallbacks: Vec<Fallback>,
}

/// What to do after an answer to the first request.
enum Step {
    Done(GetSummary),
    Redirected(Url),
    /// Once more from the beginning, with or without ranges.
    Restart {
        ranges: bool,
    },
}

impl<F: FnMut(GetProgress)> Job<F> {
    async fn run(mut self, url: Url) -> Result<GetSummary, GetError> {
        let outcome = self.follow(url).await;
        if outcome.is_err() {
            self.part.remove_if_empty().await;
        }
        outcome
    }

    async fn follow(&mut self, mut url: Url) -> Result<GetSummary, GetError> {
        let started = tokio::time::Instant::now();
        let mut ranges = true;
        for _ in 0..=MOST_REDIRECTS {
            match self.attempt(&url, ranges, started).await? {
                Step::Done(summary) => return Ok(summary),
                Step::Redirected(to) => url = to,
                Step::Restart { ranges: again } => {
                    ranges = again;
                    self.resumed = 0;
                    self.part.restart().await?;
                }
            }
        }
        Err(GetError::TooManyRedirects { url: self.options.url.clone() })
    }

    async fn attempt(
        &mut self,
        url: &Url,
        ranges: bool,
        started: tokio::time::Instant,
    ) -> Result<Step, GetError> {
        let origin = request::origin(url, self.options.cacert.as_deref())?;
        let same_origin =
            request::parse_url(&self.options.url).is_ok_and(|first| first.origin() == url.origin());
        let head = request::head(url, &self.options.headers, same_origin)?;
        let offers = offers(&self.paths, &origin.host);
        if offers.is_empty() {
            return Err(GetError::NoPaths);
        }
        let begin = self.part.length();
        let opening = if ranges { Opening::Range { begin } } else { Opening::AsClient };
        let config = TransferConfig {
            download: DownloadConfig {
                preference: download_preference(self.options.preference),
                opening,
                open_all_paths_at_once: ranges,
                memory_bytes: self.options.memory_bytes,
                tail: self.part.tail(tuning::OVERLAP_BYTES).await?,
            },
            opening_bytes: head.raw().clone(),
            request: head.clone(),
            origin,
            buffers: SharedBuffers::unshared(self.options.memory_bytes),
        };
        let mut transfer =
            Transfer::begin(self.paths.clone(), self.resolver.clone(), config, offers, Vec::new());
        let opened =
            transfer.open().await.map_err(|error| GetError::of_transfer(error, url, self.part.path()))?;
        match opened.head.status() {
            200 | 206 => {}
            301 | 302 | 303 | 307 | 308 => return request::redirect(url, &opened.head).map(Step::Redirected),
            // An empty object satisfies no range, and some servers fail on ranges.
            status if opened.is_due_to_splitting() => {
                let reason =
                    format!("the server answers the range with status {status}; the object is fetched anew");
                self.note(None, &reason);
                return Ok(Step::Restart { ranges: begin > 0 });
            }
            status => return Err(GetError::Status { status, url: url.to_string() }),
        }
        if opened.head.status() == 200 && begin > 0 {
            self.note(None, "the server cannot resume; the object is fetched anew");
            return Ok(Step::Restart { ranges: true });
        }
        match opened.representation(&head, 0) {
            // Nothing would be left to compare it with.
            Ok(known) if begin > 0 && known.total <= begin => {
                self.note(None, "the partial file is longer than the object, which is fetched anew");
                Ok(Step::Restart { ranges: true })
            }
            Ok(known) => {
                let reusable = connection_persists(&head, &opened.head);
                transfer.accept(&opened, known, reusable);
                self.split(transfer, url, started).await
            }
            // A part must not be taken for the whole.
            Err(why) if opened.head.status() == 206 && ranges => {
                self.note(None, &format!("not split: {why}"));
                Ok(Step::Restart { ranges: false })
            }
            Err(why) if opened.head.status() == 206 => {
                Err(GetError::Broken { url: url.to_string(), reason: why.to_string() })
            }
            Err(why) => {
                self.note(None, &format!("not split: {why}"));
                let connection = transfer.into_opening_connection(&opened).ok_or(GetError::NoPaths)?;
                self.relay(connection, &head, &opened.head, url, started).await
            }
        }
    }

    async fn split(
        &mut self,
        mut transfer: Transfer,
        url: &Url,
        started: tokio::time::Instant,
    ) -> Result<Step, GetError> {
        let (paths, resumed) = (self.paths.clone(), self.part.length());
        let on_progress = &mut self.on_progress;
        let observe = |progress: Progress| on_progress(describe(&paths, &progress, resumed));
        let outcome = transfer.run(&mut self.part, observe).await;
        let summary = transfer.summary();
        if let Some(host) = url.host_str() {
            remember(&self.paths, host.trim_matches(['[', ']']), &summary);
        }
        for event in &summary.fallbacks {
            let (path, reason) = tell(event);
            self.note(path, &reason);
        }
        match outcome {
            Ok(()) => self.finish(Some(summary), started).await.map(Step::Done),
            Err(TransferError::Changed) if resumed > 0 && summary.bytes == 0 => {
                self.note(None, "the partial file is of another version; the object is fetched anew");
                Ok(Step::Restart { ranges: true })
            }
            Err(error) => {
                self.part.flush().await?;
                Err(GetError::of_transfer(error, url, self.part.path()))
            }
        }
    }

    /// Takes an answer that may not be split as it comes.
    async fn relay(
        &mut self,
        connection: OpeningConnection,
        request: &RequestHead,
        head: &ResponseHead,
        url: &Url,
        started: tokio::time::Instant,
    ) -> Result<Step, GetError> {
        let OpeningConnection { path, mut stream, read_ahead } = connection;
        let mut body = BodyReader::new(head.body_length(request.method()));
        let mut chunk = bytes::BytesMut::from(&read_ahead[..]);
        let broken = |reason: String| GetError::Broken { url: url.to_string(), reason };
        loop {
            let mut payload = Vec::with_capacity(chunk.len());
            body.decode(&chunk, |data| payload.extend_from_slice(data)).map_err(|e| broken(e.to_string()))?;
            self.part.write_all(&payload).await?;
            let progress = GetPathProgress {
                interface: interface(&self.paths, path),
                bytes: self.part.length(),
                rate: Rate::from_bytes_in(self.part.length(), started.elapsed()),
                rtt: None,
            };
            let (bytes, total) = (self.part.length(), head.content_length());
            (self.on_progress)(GetProgress { bytes, total, paths: vec![progress] });
            if body.is_complete() {
                break;
            }
            chunk.clear();
            let read = stream.read_buf(&mut chunk).await.map_err(|e| broken(e.to_string()))?;
            if read == 0 {
                body.handle_close().map_err(|e| broken(e.to_string()))?;
                break;
            }
        }
        let bytes = self.part.length();
        let mut summary = self.finish(None, started).await?;
        let mean = Rate::from_bytes_in(bytes, started.elapsed()).bits_per_second();
        let interface = interface(&self.paths, path);
        summary.paths =
            vec![GetPath { interface, bytes, share: 1.0, mean_bits_per_second: mean, requests: 1 }];
        Ok(Step::Done(summary))
    }

    async fn finish(
        &mut self,
        transfer: Option<crate::split::TransferSummary>,
        started: tokio::time::Instant,
    ) -> Result<GetSummary, GetError> {
        let bytes = self.part.length();
        self.part.flush().await?;
        // The paths are done; how long a disk takes to keep the file says nothing of them.
        let elapsed = started.elapsed();
        let sha256 = self.part.finish(self.options.sha256).await?;
        let shares = transfer.as_ref().map(|t| t.shares.as_slice()).unwrap_or_default();
        let fetched: u64 = shares.iter().map(|share| share.bytes).sum();
        let paths = shares
            .iter()
            .map(|share| GetPath {
                interface: interface(&self.paths, share.path),
                bytes: share.bytes,
                share: if fetched == 0 { 0.0 } else { share.bytes as f64 / fetched as f64 },
                mean_bits_per_second: Rate::from_bytes_in(share.bytes, share.active).bits_per_second(),
                requests: share.requests,
            })
            .collect();
        Ok(GetSummary {
            url: self.options.url.clone(),
            file: self.options.file.clone(),
            bytes,
            resumed_bytes: self.resumed,
            seconds: elapsed.as_secs_f64(),
            paths,
            verification: Verification {
                boundaries_checked: transfer.as_ref().map_or(0, |t| t.boundaries_verified),
                mismatches: transfer.as_ref().map_or(0, |t| t.mismatches),
            },
            fallbacks: std::mem::take(&mut self.fallbacks),
            sha256,
        })
    }

    fn note(&mut self, path: Option<PathId>, reason: &str) {
        let interface = path.map(|path| interface(&self.paths, path));
        self.fallbacks.push(Fallback { interface, reason: reason.to_owned() });
    }
}

fn download_preference(preference: Preference) -> multiway_core::mphttp::download::Preference {
    use multiway_core::mphttp::download::Preference as Split;
    match preference {
        Preference::Fast => Split::Fast,
        Preference::Thrifty { tolerance } => Split::Thrifty { tolerance },
    }
}

fn describe(paths: &PathTable, progress: &Progress, resumed: u64) -> GetProgress {
    GetProgress {
        bytes: resumed + progress.delivered,
        total: Some(resumed + progress.wanted),
        paths: progress
            .paths
            .iter()
            .map(|path| GetPathProgress {
                interface: interface(paths, path.path),
                bytes: path.bytes,
                rate: path.rate,
                rtt: paths.estimate(path.path, "").rtt,
            })
            .collect(),
    }
}

fn interface(paths: &PathTable, path: PathId) -> String {
    paths.get(path).map_or_else(|| path.to_string(), |info| info.interface)
}

/// An event in words, with the path it concerns.
fn tell(event: &Event) -> (Option<PathId>, String) {
    match event {
        Event::Mismatch { offset, dropped, .. } => {
            (Some(*dropped), format!("its bytes differ at offset {offset}; another path's version is kept"))
        }
        Event::PathExcluded { path, reason } => (Some(*path), format!("not used any more: {reason}")),
        Event::LaneLost { path, cause } => (Some(*path), format!("a connection was lost: {cause}")),
        Event::Finished | Event::Failed(_) => (None, String::new()),
    }
}

/// The file that `url` is saved to when none is named: its last path segment.
pub fn default_file(url: &str) -> Result<PathBuf, GetError> {
    let url = request::parse_url(url)?;
    let segment = url.path_segments().and_then(|mut s| s.next_back().map(str::to_owned)).unwrap_or_default();
    let name = request::percent_decoded(&segment);
    let name = Path::new(&name).file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let safe = !name.is_empty() && !name.starts_with('.') && !name.chars().any(char::is_control);
    Ok(PathBuf::from(if safe { name } else { "index.html" }))
}
