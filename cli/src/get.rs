//! `multiway get`: downloads over every network at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use multiway_api::GetSummary;
use multiway_engine::config::{InterfacePattern, Permission, Preference};
use multiway_engine::dns::{Resolver, Upstreams};
use multiway_engine::get::{self, DEFAULT_MEMORY_BYTES, GetError, GetOptions};
use multiway_engine::origin::OriginError;
use multiway_engine::paths::{PathTable, PathTableConfig, default_history_file};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, PreferenceName};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::paths::require_interfaces;
use crate::progress::Progress;
use crate::{log, output, units};

/// What `--output` means the standard output by, where then nothing else is written.
const STANDARD_OUTPUT: &str = "-";

/// Downloads one URL after another; a failure is reported at once and does not keep the next from
/// being tried. Ends with the first failure's code.
pub(crate) fn get(args: args::Get) -> Result<(), Exit> {
    let files = plan(&args).map_err(Failure::report)?;
    log::to_standard_error("warn");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Other, format!("threads cannot be started: {error}")).report())?;
    let downloads = async {
        tokio::select! {
            result = download_all(&args, files) => result,
            exit = stopped() => Err(exit),
        }
    };
    let result = runtime.block_on(downloads);
    // A name being looked up, or a file being written, must not hold up the end.
    runtime.shutdown_background();
    result
}

/// The file of each URL; finds what is wrong with any of them before the first is downloaded.
fn plan(args: &args::Get) -> Result<Vec<PathBuf>, Failure> {
    if args.output.is_some() && args.urls.len() > 1 {
        return Err(Failure::new(Exit::Usage, "--output names one file, and there are several URLs")
            .help("Leave it out: each file is then named after the last part of its URL."));
    }
    if args.json && args.output.as_deref() == Some(STANDARD_OUTPUT.as_ref()) {
        return Err(Failure::new(
            Exit::Usage,
            "the summary and the file cannot both go to the standard output",
        ));
    }
    let files: Vec<PathBuf> = match &args.output {
        Some(file) => vec![file.clone()],
        None => {
            args.urls.iter().map(|url| get::default_file(url)).collect::<Result<_, _>>().map_err(explain)?
        }
    };
    for (index, file) in files.iter().enumerate() {
        if files[..index].contains(file) {
            let message = format!("two URLs would both be written to {}", file.display());
            return Err(Failure::new(Exit::Usage, message).help("Download them one by one, with --output."));
        }
    }
    if args.checksum.is_some() && args.urls.len() > 1 {
        return Err(Failure::new(Exit::Usage, "--checksum is that of one file, and there are several URLs"));
    }
    require_interfaces(&args.paths.interfaces)?;
    Ok(files)
}

async fn stopped() -> Exit {
    let (Ok(mut interrupted), Ok(mut terminated)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupted.recv() => Exit::Interrupted,
        _ = terminated.recv() => Exit::Terminated,
    }
}

async fn download_all(args: &args::Get, files: Vec<PathBuf>) -> Result<(), Exit> {
    let preference = match args.paths.preference {
        Some(PreferenceName::Fast) => Preference::Fast,
        Some(PreferenceName::Thrifty) | None => Preference::default(),
    };
    let only = args.paths.interfaces.iter().cloned().map(InterfacePattern).collect::<Vec<_>>();
    let permission = Permission { only: (!only.is_empty()).then_some(only), ..Permission::default() };
    let config = PathTableConfig {
        permission,
        preference,
        history: default_history_file(),
        ..PathTableConfig::default()
    };
    let paths = PathTable::start(config).map_err(|error| Failure::new(Exit::Other, error).report())?;
    let resolver = Resolver::new(Arc::new(paths.clone()), Upstreams::default());

    let mut result = Ok(());
    for (url, file) in args.urls.iter().zip(files) {
        let options = GetOptions {
            url: url.clone(),
            file,
            preference,
            sha256: args.checksum.map(|checksum| checksum.0),
            resume: args.resume,
            headers: args.headers.clone(),
            cacert: args.cacert.clone(),
            memory_bytes: DEFAULT_MEMORY_BYTES,
        };
        let mut progress = Progress::new(args.quiet, &options.file);
        let downloaded = get::run(paths.clone(), resolver.clone(), options, |now| progress.show(&now)).await;
        progress.clear();
        let shown = downloaded.map_err(explain).and_then(|summary| show(args, &summary));
        if let Err(failure) = shown {
            let exit = failure.report();
            result = result.and(Err(exit));
        }
    }
    result
}

fn show(args: &args::Get, summary: &GetSummary) -> Result<(), Failure> {
    if args.json {
        return output::json_line(summary).map(drop);
    }
    if args.quiet || summary.file == Path::new(STANDARD_OUTPUT) {
        return Ok(());
    }
    output::text(&in_words(summary)).map(drop)
}

fn in_words(summary: &GetSummary) -> String {
    let fetched = summary.bytes.saturating_sub(summary.resumed_bytes);
    let rate = if summary.seconds > 0.0 { fetched as f64 * 8.0 / summary.seconds } else { 0.0 };
    let mut text = format!(
        "{}: {} in {:.2} s ({})",
        summary.file.display(),
        units::bytes(summary.bytes),
        summary.seconds,
        units::rate(rate as u64)
    );
    if summary.resumed_bytes > 0 {
        text.push_str(&format!(", {} of it from an earlier attempt", units::bytes(summary.resumed_bytes)));
    }
    text.push('\n');
    for path in summary.paths.iter().filter(|path| path.bytes > 0 || path.requests > 0) {
        text.push_str(&format!(
            "  {:<15} {:>10} {:>5} {:>14}\n",
            path.interface,
            units::bytes(path.bytes),
            units::percent(path.share),
            units::rate(path.mean_bits_per_second)
        ));
    }
    let verification = summary.verification;
    if verification.boundaries_checked > 0 {
        text.push_str(&format!(
            "  {} boundaries between networks compared, {} differed\n",
            verification.boundaries_checked, verification.mismatches
        ));
    }
    for fallback in &summary.fallbacks {
        let interface = fallback.interface.as_ref().map_or_else(String::new, |name| format!("{name}: "));
        text.push_str(&format!("  {interface}{}\n", fallback.reason));
    }
    if let Some(digest) = &summary.sha256 {
        text.push_str(&format!("  sha256:{digest} as wanted\n"));
    }
    text
}

fn explain(error: GetError) -> Failure {
    let exit = match &error {
        GetError::Url { .. } | GetError::Header(_) => Exit::Usage,
        GetError::NoPaths | GetError::Broken { .. } => Exit::Unreachable,
        GetError::Tls(_) | GetError::Certificate { .. } => Exit::Tls,
        GetError::Unreachable { source, .. } => match source {
            OriginError::Tls { .. } | OriginError::TlsName { .. } => Exit::Tls,
            OriginError::Resolve(_) | OriginError::Connect(_) => Exit::Unreachable,
        },
        GetError::Status { .. } | GetError::Redirect { .. } | GetError::TooManyRedirects { .. } => {
            Exit::HttpStatus
        }
        GetError::Changed { .. } | GetError::Checksum { .. } | GetError::StreamChecksum { .. } => {
            Exit::Verification
        }
        GetError::File { .. } => Exit::Disk,
    };
    let failure = Failure::new(exit, &error);
    match error {
        GetError::Certificate { .. } => failure
            .help("If the server's certificate authority is your own, name its certificate with --cacert."),
        GetError::Unreachable { .. } => failure.help("`multiway paths` says which networks can be used."),
        GetError::Status { status: 404, .. } => failure.help("There is nothing of this name; check the URL."),
        GetError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            failure.help("Make the directory first, or name another place with --output.")
        }
        GetError::File { .. } => failure.help(
            "Free some space, or name another place with --output. What came stays in the `.part` file.",
        ),
        GetError::Checksum { .. } | GetError::StreamChecksum { .. } => {
            failure.help("The checksum may be that of another version; otherwise do not trust this server.")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use multiway_api::{Fallback, GetPath, Verification};

    use super::*;

    #[test]
    fn a_summary_tells_shares_verification_and_fallbacks() {
        let path = |interface: &str, bytes, share| GetPath {
            interface: interface.into(),
            bytes,
            share,
            mean_bits_per_second: 20_000_000,
            requests: 1,
        };
        let text = in_words(&GetSummary {
            url: "http://a/f".into(),
            file: "f".into(),
            bytes: 10_000_000,
            resumed_bytes: 0,
            seconds: 2.0,
            paths: vec![path("wlan0", 6_000_000, 0.6), path("wwan0", 4_000_000, 0.4)],
            verification: Verification { boundaries_checked: 7, mismatches: 0 },
            fallbacks: vec![Fallback { interface: Some("wwan0".into()), reason: "status 503".into() }],
            sha256: None,
        });
        assert!(text.starts_with("f: 10.0 MB in 2.00 s (40.0 Mbit/s)\n"), "{text}");
        for part in ["wlan0", "60%", "7 boundaries", "wwan0: status 503"] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }
}
