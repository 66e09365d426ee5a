//! OpenSSH on hosts of the lab: a server and a way to log in that know nothing of the machine's own.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::host::{Host, Process};
use crate::lab::Lab;

/// The server's program. It starts itself again for each connection, which takes its whole name.
pub const SSHD: &str = "/usr/sbin/sshd";

/// What clients call the server when they look its key up, whatever name or address they reach it by.
const ALIAS: &str = "lab";

/// How long the server may take to listen on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What the server finds in its host's own view of the file system: a directory in which it locks its
/// children up, and an account of root's that is neither locked nor expired, as it may be on the machine.
const FURNISH: &str = "mount -t tmpfs -o mode=755 tmpfs /run; mkdir -m 755 /run/sshd; \
                       umask 077; echo 'root:*:1::::::' > /run/shadow; mount --bind /run/shadow /etc/shadow";

/// A server of ssh for root, with keys of its own; killed with its sessions when dropped.
#[derive(Debug)]
pub struct Sshd {
    _process: Process,
    directory: PathBuf,
    port: u16,
}

impl Sshd {
    /// Starts one that speaks Multipath TCP if asked to, and waits until `address` of the host accepts
    /// connections. The key to log in with is the user's with the id `client`.
    pub fn start(lab: &Lab, host: &Host, address: SocketAddr, client: u32, mptcp: bool) -> Result<Self> {
        let directory = lab.new_directory("sshd")?;
        let at = |name: &str| directory.join(name).display().to_string();
        for key in ["host_key", "user_key"] {
            let mut keygen = host.command("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]);
            host.output(keygen)?;
        }
        chown(directory.join("user_key"), Some(client), None).context("cannot give a key away")?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
        let key = fs::read_to_string(directory.join("host_key.pub"))?;
        fs::write(directory.join("known_hosts"), format!("{ALIAS} {key}"))?;
        let port = address.port();
        fs::write(
            directory.join("sshd_config"),
            format!(
                "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
                 PermitRootLogin yes\nPidFile none\nPrintMotd no\n",
                at("host_key"),
                at("user_key.pub")
            ),
        )?;
        let mut furnish = host.command("sh");
        furnish.args(["-ec", FURNISH]);
        host.output(furnish)?;
        // Its sessions are processes of its own: in a namespace of processes they end with its first.
        let mut sshd = host.command("unshare");
        sshd.args(["--pid", "--fork", "--kill-child=KILL"]);
        sshd.args(mptcp.then_some(["mptcpize", "run"]).into_iter().flatten());
        sshd.args([SSHD, "-D", "-e", "-f", &at("sshd_config")]);
        sshd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(directory.join("log"))?);
        let sshd = Self { _process: host.start(sshd)?, directory, port };
        host.wait_for_port(address, START_PATIENCE)
            .with_context(|| format!("sshd does not listen: {}", sshd.log()))?;
        Ok(sshd)
    }

    /// What makes an `ssh` of the key's owner log in: its options, to be followed by `root@` and a name or an
    /// address of the server.
    pub fn options(&self) -> Vec<String> {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let known_hosts = format!("UserKnownHostsFile={}", at("known_hosts"));
        let alias = format!("HostKeyAlias={ALIAS}");
        let settings =
            ["IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes", "StrictHostKeyChecking=yes"];
        let settings = settings.into_iter().chain([known_hosts.as_str(), alias.as_str()]);
        let settings = settings.flat_map(|setting| ["-o".to_owned(), setting.to_owned()]);
        let fixed = ["-F", "none", "-i", &at("user_key"), "-p", &self.port.to_string()].map(str::to_owned);
        fixed.into_iter().chain(settings).collect()
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default().trim().to_owned()
    }
}
