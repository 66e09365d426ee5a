//! What can be typed after `multiway`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Makes every network a device can reach work as one.
#[derive(Debug, Parser)]
#[command(name = "multiway", version, about, after_help = crate::exit::help(), arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Download over every network at once, without daemon and without root
    Get(Get),
    /// Start the daemon: proxies, and interception where the kernel lets it
    Up(Up),
    /// Run one program over every network at once
    Run(Run),
    /// Show the daemon's paths, flows and events
    Status(Status),
    /// Show each network interface and what it lacks to be a path
    Paths(Paths),
    /// Join a relay, by which any connection survives the loss of a network
    Join(Join),
    /// Run a relay for devices that join it
    Relay(Relay),
    /// Show on emulated networks what happens when one fails; needs root, and the lab's multiway-repro beside
    /// this program
    Demo {
        /// `bond` shows ssh, a radio and a download through a relay; `--help` behind it shows its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    /// Write a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    Man {
        /// Where to write them; the main page goes to the terminal without it
        directory: Option<PathBuf>,
    },
    /// Remove what a daemon left behind; started by the daemon itself
    #[command(hide = true)]
    Reaper,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A partial file ends in `.part` and becomes FILE only when it is complete and verified."
)]
pub(crate) struct Get {
    /// What to download, by http or https
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// Where to write, `-` for the standard output; by default the last part of the URL, in the current
    /// directory
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub paths: PathChoice,
    /// Fail unless the file has this digest
    #[arg(long, value_name = "sha256:HEX", value_parser = parse_checksum)]
    pub checksum: Option<Sha256>,
    /// Go on from what an earlier attempt left
    #[arg(short = 'c', long = "continue")]
    pub resume: bool,
    /// Trust the certificate authorities in this PEM file instead of the system's
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Send this header with every request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = parse_header)]
    pub headers: Vec<(String, String)>,
    /// Print a summary as one line of JSON per URL
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which paths, and how they are used.
#[derive(Debug, Args)]
pub(crate) struct PathChoice {
    /// Use this network interface; may be given several times [default: all]
    #[arg(short = 'p', long = "path", value_name = "INTERFACE")]
    pub interfaces: Vec<String>,
    /// How metered networks are used [default: thrifty]
    #[arg(long, value_enum)]
    pub preference: Option<PreferenceName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreferenceName {
    /// Whatever ends soonest
    Fast,
    /// Metered networks only for what the others cannot do within a second
    Thrifty,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Configuration file; see packaging/multiway.toml for every key
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to offer HTTP proxy and SOCKS5 [default: 127.0.0.1:7070]
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    #[command(flatten)]
    pub control: ControlSocket,
    /// Intercept the connections of this user (name or number); may be given several times
    #[arg(long = "intercept-user", value_name = "USER")]
    pub intercept_users: Vec<String>,
    /// Intercept the connections of this group (name or number); may be given several times
    #[arg(long = "intercept-group", value_name = "GROUP")]
    pub intercept_groups: Vec<String>,
    /// Intercept the connections of this control group; may be given several times
    #[arg(long = "intercept-cgroup", value_name = "CGROUP")]
    pub intercept_cgroups: Vec<String>,
    #[command(flatten)]
    pub paths: PathChoice,
}

/// Where the daemon's control socket is.
#[derive(Debug, Args)]
pub(crate) struct ControlSocket {
    /// Control socket [default: /run/multiway/control.sock for root, else $XDG_RUNTIME_DIR/multiway.sock]
    #[arg(long = "control", value_name = "SOCKET", env = "MULTIWAY_CONTROL", hide_env_values = true)]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub control: ControlSocket,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub control: ControlSocket,
    /// Print JSON, as described by docs/api.json
    #[arg(long)]
    pub json: bool,
    /// Show it anew every second
    #[arg(short, long, conflicts_with = "json")]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Print JSON, as described by docs/api.json
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// The invite that `multiway relay invite` printed
    #[arg(value_name = "URL")]
    pub invite: String,
    /// Where to keep it; the daemon has to look there [default: /var/lib/multiway/relay for root, else
    /// ~/.local/state/multiway/relay]
    #[arg(long, value_name = "FILE")]
    pub membership: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false, subcommand_negates_reqs = true)]
pub(crate) struct Relay {
    #[command(subcommand)]
    pub command: Option<RelayCommand>,
    /// Configuration file; see packaging/relay.toml for every key
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Directory of keys, users and usage [default: /var/lib/multiway-relay for root, else
    /// ~/.local/state/multiway-relay]
    #[arg(long, value_name = "DIRECTORY", global = true)]
    pub state: Option<PathBuf>,
    /// Where devices connect; may be given several times [default: [::]:443 and 0.0.0.0:443]
    #[arg(short, long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    /// Let a device in: print a URL, and a QR code, for `multiway join`
    Invite(Invite),
    /// List who was invited, and what they used this month
    Users {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Shut a user out, at once
    Revoke {
        /// The user's name or number
        user: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Invite {
    /// Who it is for; anything that tells users apart
    #[arg(long, default_value = "device")]
    pub name: String,
    /// For how long it is good, such as 30d, 12h or never
    #[arg(long, default_value = "never", value_parser = parse_lifetime)]
    pub expires: Lifetime,
    /// How much may be moved each month, both directions together, such as 50GB/month [default: any amount]
    #[arg(long, value_parser = parse_allowance)]
    pub limit: Option<u64>,
    /// Where devices reach the relay [default: address in the configuration file]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Print the URL alone
    #[arg(short, long)]
    pub quiet: bool,
}

/// How long an invite is good, in seconds; for ever when absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime(pub Option<u64>);

fn parse_lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    let wrong = || format!("`{text}` is no time such as 30d, 12h, 45min or never");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "d" => 86_400,
        "h" => 3_600,
        "min" => 60,
        _ => return Err(wrong()),
    };
    let number = number.parse::<u64>().ok().filter(|&number| number > 0).ok_or_else(wrong)?;
    number.checked_mul(unit).map(|seconds| Lifetime(Some(seconds))).ok_or_else(wrong)
}

fn parse_allowance(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no amount such as 50GB/month or 500MB/month");
    let amount = text.strip_suffix("/month").unwrap_or(text).trim();
    let digits = amount.find(|c: char| !c.is_ascii_digit()).unwrap_or(amount.len());
    let (number, unit) = amount.split_at(digits);
    let unit = match unit.trim() {
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let number = number.parse::<u64>().ok().filter(|&number| number > 0).ok_or_else(wrong)?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// A SHA-256 digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sha256(pub [u8; 32]);

fn parse_checksum(text: &str) -> Result<Sha256, String> {
    let Some(hex) = text.strip_prefix("sha256:") else {
        return Err("a checksum is given as `sha256:` and 64 hexadecimal digits".to_owned());
    };
    let digits: Option<Vec<u8>> =
        hex.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let bytes: Option<[u8; 32]> = digits
        .map(|digits| {
            digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
        })
        .and_then(|bytes: Vec<u8>| bytes.try_into().ok());
    match bytes {
        Some(bytes) if hex.len() == 64 => Ok(Sha256(bytes)),
        _ => Err(format!("SHA-256 has 64 hexadecimal digits, not `{hex}`")),
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a header is given as `Name: value`")?;
    // RFC 9110 section 5.6.2: a field name is a token; section 5.5: a value has no control characters.
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(token) {
        return Err(format!("`{name}` cannot be the name of a header"));
    }
    let value = value.trim();
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(format!("the value of `{name}` has a control character"));
    }
    // What is asked for of which connection is decided by the download itself.
    const OURS: [&str; 7] =
        ["host", "range", "if-range", "connection", "content-length", "transfer-encoding", "accept-encoding"];
    if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        return Err(format!("`{name}` is set by the download itself"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_checksum_names_its_algorithm_and_has_64_digits() {
        let digest = parse_checksum(&format!("sha256:{}", "0aF1".repeat(16))).unwrap();
        assert_eq!(digest.0[..2], [0x0a, 0xf1]);
        for wrong in
            ["", "sha256:", "md5:00", "sha256:0", &"0".repeat(64), &format!("sha256:{}", "0x".repeat(32))]
        {
            assert!(parse_checksum(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_header_cannot_smuggle_another_or_break_the_ranges() {
        assert_eq!(parse_header("X-A:  b c ").unwrap(), ("X-A".to_owned(), "b c".to_owned()));
        for wrong in ["", "a", ": b", "a b: c", "a: b\r\nc: d", "Range: bytes=0-"] {
            assert!(parse_header(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn lifetimes_and_allowances_have_units() {
        assert_eq!(parse_lifetime("30d"), Ok(Lifetime(Some(2_592_000))));
        assert_eq!(parse_lifetime("never"), Ok(Lifetime(None)));
        assert_eq!(parse_allowance("50GB/month"), Ok(50_000_000_000));
        for wrong in ["", "30", "d", "0d", "-1d", "99999999999999999999d"] {
            assert!(parse_lifetime(wrong).is_err() && parse_allowance(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_follows_run_is_left_alone() {
        let cli = Cli::parse_from(["multiway", "run", "--", "curl", "-o", "--json"]);
        let Command::Run(run) = cli.command else { panic!("{cli:?}") };
        assert_eq!(run.command, ["curl", "-o", "--json"]);
        let cli = Cli::parse_from(["multiway", "run", "curl", "--control", "x"]);
        let Command::Run(run) = cli.command else { panic!("{cli:?}") };
        assert_eq!(run.command, ["curl", "--control", "x"]);
    }
}
