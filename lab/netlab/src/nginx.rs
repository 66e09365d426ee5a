//! nginx on a host of the lab.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::content;
use crate::host::{Host, Process};
use crate::lab::Lab;

/// How long nginx may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What an nginx will be like.
#[derive(Debug, Clone, Default)]
pub struct NginxSpec {
    listen: Vec<SocketAddr>,
    files: Vec<(String, u64)>,
    tls: Option<(Vec<SocketAddr>, PathBuf, PathBuf)>,
    extra: String,
    mptcp: bool,
}

impl NginxSpec {
    /// One without files that listens nowhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also listens here, for plain HTTP.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(address);
        self
    }

    /// Also listens here, for HTTPS, with a certificate chain and a key in PEM files.
    #[must_use]
    pub fn listen_tls(mut self, addresses: &[SocketAddr], certificate: &Path, key: &Path) -> Self {
        self.tls = Some((addresses.to_vec(), certificate.to_owned(), key.to_owned()));
        self
    }

    /// Also serves a file of seeded random bytes; [`content::content`] gives the same bytes.
    #[must_use]
    pub fn file(mut self, name: &str, bytes: u64) -> Self {
        self.files.push((name.to_owned(), bytes));
        self
    }

    /// Also has these lines in its `server` blocks.
    #[must_use]
    pub fn directives(mut self, lines: &str) -> Self {
        self.extra.push_str(lines);
        self.extra.push('\n');
        self
    }

    /// Speaks Multipath TCP, by mptcpize.
    #[must_use]
    pub fn mptcp(mut self) -> Self {
        self.mptcp = true;
        self
    }

    /// Starts it and waits until it listens.
    pub fn start(&self, lab: &Lab, host: &Host) -> Result<Nginx> {
        let directory = lab.new_directory(&format!("nginx-{}", host.name()))?;
        let root = directory.join("www");
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        for (name, bytes) in &self.files {
            content::write(&root.join(name), lab.seed(), name, *bytes)?;
        }
        let configuration = directory.join("nginx.conf");
        std::fs::write(&configuration, self.configuration(&directory))
            .with_context(|| format!("cannot write {}", configuration.display()))?;

        let mut command = if self.mptcp { host.command("mptcpize") } else { host.command("nginx") };
        if self.mptcp {
            command.args(["run", "nginx"]);
        }
        command.arg("-c").arg(&configuration).arg("-e").arg(directory.join("error.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut nginx = Nginx { process: host.start(command)?, directory };
        let addresses = self.listen.iter().chain(self.tls.iter().flat_map(|(addresses, ..)| addresses));
        for address in addresses {
            nginx.wait_until_it_listens(host, *address)?;
        }
        Ok(nginx)
    }

    fn configuration(&self, directory: &Path) -> String {
        let at = directory.display();
        let mut listen = String::new();
        let mut add = |address: &SocketAddr, more: &str| {
            writeln!(listen, "    listen {address}{more} backlog=4096;").expect("strings take everything");
        };
        self.listen.iter().for_each(|address| add(address, ""));
        if let Some((addresses, certificate, key)) = &self.tls {
            addresses.iter().for_each(|address| add(address, " ssl"));
            writeln!(
                listen,
                "    ssl_certificate {};\n    ssl_certificate_key {};",
                certificate.display(),
                key.display()
            )
            .expect("strings take everything");
        }
        let extra = &self.extra;
        // One process, so that its id is all there is to stop.
        format!(
            r#"daemon off;
master_process off;
user root;
pid {at}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  types {{ application/octet-stream bin; text/html html; video/mp4 mp4; }}
  default_type application/octet-stream;
  log_format lab '$remote_addr $status $body_bytes_sent "$http_range" "$request"';
  access_log {at}/access.log lab;
  client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
  uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
  sendfile on; tcp_nopush on; keepalive_requests 100000; keepalive_timeout 300s; send_timeout 300s;
  server {{
{listen}    root {at}/www;
{extra}
  }}
}}
"#
        )
    }
}

/// A running nginx; stopped when dropped.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    directory: PathBuf,
}

/// One line of nginx's access log, written when a request ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Who asked.
    pub client: IpAddr,
    /// The answer's status.
    pub status: u16,
    /// Bytes of the body that were sent.
    pub body_bytes: u64,
    /// The `Range` header, when there was one.
    pub range: Option<String>,
    /// The request line.
    pub line: String,
}

impl Nginx {
    fn wait_until_it_listens(&mut self, host: &Host, address: SocketAddr) -> Result<()> {
        /// Between looks at whether it is still running.
        const LOOK: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + START_PATIENCE;
        while let Err(error) = host.wait_for_port(address, LOOK) {
            let ended = self.process.child().try_wait()?;
            if ended.is_some() || Instant::now() >= deadline {
                let log = std::fs::read_to_string(self.directory.join("error.log")).unwrap_or_default();
                let ended = ended.map_or(String::new(), |status| format!("; it ended with {status}"));
                bail!("nginx does not start: {error:#}{ended}: {}", log.trim());
            }
        }
        Ok(())
    }

    /// The directory whose files it serves; files may be added while it runs.
    pub fn root(&self) -> PathBuf {
        self.directory.join("www")
    }

    /// Its process id.
    pub fn process_id(&mut self) -> u32 {
        self.process.child().id()
    }

    /// Requests that have ended, in that order.
    pub fn requests(&self) -> Result<Vec<LoggedRequest>> {
        let file = self.directory.join("access.log");
        let log =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        log.lines()
            .map(|line| parse_log_line(line).with_context(|| format!("nginx logged `{line}`")))
            .collect()
    }

    /// Stops it, as its machine's failure would: connections are reset.
    pub fn stop(mut self) -> Result<()> {
        self.process.terminate().map(drop)
    }
}

fn parse_log_line(line: &str) -> Option<LoggedRequest> {
    let (head, quoted) = line.split_once(" \"")?;
    let (range, request) = quoted.strip_suffix('"')?.split_once("\" \"")?;
    let mut words = head.split(' ');
    Some(LoggedRequest {
        client: words.next()?.parse().ok()?,
        status: words.next()?.parse().ok()?,
        body_bytes: words.next()?.parse().ok()?,
        range: (range != "-").then(|| range.to_owned()),
        line: request.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_is_read_back() {
        let request = parse_log_line(r#"10.1.0.2 206 500 "bytes=0-499" "GET /a.bin HTTP/1.1""#);
        assert_eq!(
            request,
            Some(LoggedRequest {
                client: IpAddr::from([10, 1, 0, 2]),
                status: 206,
                body_bytes: 500,
                range: Some("bytes=0-499".to_owned()),
                line: "GET /a.bin HTTP/1.1".to_owned(),
            })
        );
    }
}
