//! Which program a local connection belongs to.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

/// The search through the processes' open files ends then, found or not: its answer is shown to
/// people, and a host may have very many processes.
const SEARCH_TIME: Duration = Duration::from_millis(50);

/// A running program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Process number.
    pub pid: u32,
    /// The kernel's short name of it.
    pub name: String,
    /// User who owns the connection.
    pub uid: u32,
}

/// The program whose TCP socket has this local and remote address; see [`owners_of_connections`].
pub fn owner_of_connection(local: SocketAddr, remote: SocketAddr) -> Option<Program> {
    owners_of_connections(&[(local, remote)]).pop().flatten()
}

/// The programs whose TCP sockets have these local and remote addresses, as the programs see them.
///
/// For a redirected connection these are the accepted socket's peer and its original destination.
/// `None` when there is none, it may not be seen, or the search takes too long. One search finds
/// the owners of many connections as fast as that of one.
pub fn owners_of_connections(connections: &[(SocketAddr, SocketAddr)]) -> Vec<Option<Program>> {
    let silent = |error: io::Error| {
        tracing::debug!(%error, "the kernel does not say whose a connection is");
    };
    let Ok(mut questions) = diag::Questions::open().map_err(silent) else {
        return vec![None; connections.len()];
    };
    let sockets: Vec<Option<(u32, u32)>> = connections
        .iter()
        .map(|&(local, remote)| questions.find(local, remote).map_err(silent).ok().flatten())
        .map(|found| found.filter(|(inode, _)| *inode != NOBODY))
        .collect();
    let holders = holders_of_sockets(sockets.iter().copied().flatten());
    let program = |(inode, uid)| {
        let (pid, name) = holders.get(&inode)?.clone();
        Some(Program { pid, name, uid })
    };
    sockets.into_iter().map(|socket| socket.and_then(program)).collect()
}

/// True when the TCP socket with this local and remote address is on this host, and the program it
/// belonged to has closed it or ended.
///
/// A stream's end that the other side sees says less: a program may end its own direction and go on
/// reading.
pub fn is_abandoned(local: SocketAddr, remote: SocketAddr) -> bool {
    let found = diag::Questions::open().and_then(|mut questions| questions.find(local, remote));
    matches!(found, Ok(Some((NOBODY, _))))
}

/// Inode of a socket that no process has open any more but the kernel still brings to its end.
const NOBODY: u32 = 0;

/// For each inode of a socket a process with it open, the newest first: it most likely made the
/// connection.
fn holders_of_sockets(sockets: impl Iterator<Item = (u32, u32)>) -> HashMap<u32, (u32, String)> {
    let deadline = Instant::now() + SEARCH_TIME;
    let (mut wanted, uids): (HashSet<u32>, HashSet<u32>) = sockets.unzip();
    let mut holders = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return holders };
    if wanted.is_empty() {
        return holders;
    }
    let mut processes: Vec<(bool, u32)> = entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((uids.contains(&entry.metadata().ok()?.uid()), pid))
        })
        .collect();
    processes.sort_unstable_by(|a, b| b.cmp(a));
    for (_, pid) in processes {
        if wanted.is_empty() || Instant::now() > deadline {
            break;
        }
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        let held = files.flatten().filter_map(|file| socket_inode(&fs::read_link(file.path()).ok()?));
        let held: Vec<u32> = held.filter(|inode| wanted.remove(inode)).collect();
        if let (false, Ok(name)) = (held.is_empty(), fs::read_to_string(format!("/proc/{pid}/comm"))) {
            let name = name.trim_end().to_owned();
            holders.extend(held.into_iter().map(|inode| (inode, (pid, name.clone()))));
        }
    }
    holders
}

/// The number in `socket:[number]`.
fn socket_inode(target: &Path) -> Option<u32> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Exact questions to `NETLINK_SOCK_DIAG` (include/uapi/linux/inet_diag.h).
mod diag {
    use super::*;

    /// `SOCK_DIAG_BY_FAMILY`.
    const BY_FAMILY: u16 = 20;
    /// Length of `struct nlmsghdr`.
    const HEADER: usize = 16;
    /// Length of `struct inet_diag_req_v2`.
    const REQUEST: usize = 56;
    /// Offsets of `idiag_uid` and `idiag_inode` in `struct inet_diag_msg`.
    const UID: usize = 64;
    const INODE: usize = 68;

    pub(super) struct Questions(Socket);

    impl Questions {
        pub(super) fn open() -> io::Result<Self> {
            let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
            socket.bind_auto()?;
            socket.connect(&NetlinkAddr::new(0, 0))?;
            Ok(Self(socket))
        }

        /// Inode and user of the socket; `None` when there is no such socket.
        pub(super) fn find(
            &mut self,
            local: SocketAddr,
            remote: SocketAddr,
        ) -> io::Result<Option<(u32, u32)>> {
            self.0.send(&request(local, remote), 0)?;
            let (answer, _) = self.0.recv_from_full()?;
            decode(&answer)
        }
    }

    fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
        let (local, remote) = (SocketAddr::new(local.ip().to_canonical(), local.port()), {
            SocketAddr::new(remote.ip().to_canonical(), remote.port())
        });
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut bytes = Vec::with_capacity(HEADER + REQUEST);
        bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
        bytes.extend(BY_FAMILY.to_ne_bytes());
        bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend([0; 8]);
        // sdiag_family, sdiag_protocol, idiag_ext, pad; then all states.
        bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes.extend(local.port().to_be_bytes());
        bytes.extend(remote.port().to_be_bytes());
        for address in [local.ip(), remote.ip()] {
            let mut field = [0; 16];
            match address {
                IpAddr::V4(address) => field[..4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => field = address.octets(),
            }
            bytes.extend(field);
        }
        // Any interface, and INET_DIAG_NOCOOKIE.
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend([0xff; 8]);
        bytes
    }

    fn decode(answer: &[u8]) -> io::Result<Option<(u32, u32)>> {
        let u32_at = |offset: usize| {
            answer.get(offset..).and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes)
        };
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let kind = answer.get(4..).and_then(<[u8]>::first_chunk).copied().map(u16::from_ne_bytes);
        match kind.ok_or_else(malformed)? {
            BY_FAMILY => {
                let inode = u32_at(HEADER + INODE).ok_or_else(malformed)?;
                let uid = u32_at(HEADER + UID).ok_or_else(malformed)?;
                Ok(Some((inode, uid)))
            }
            // NLMSG_ERROR carries the negative error number.
            2 => {
                let error = u32_at(HEADER).ok_or_else(malformed)?.cast_signed().wrapping_neg();
                if error == libc::ENOENT { Ok(None) } else { Err(io::Error::from_raw_os_error(error)) }
            }
            _ => Err(malformed()),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn answers_are_read_and_broken_ones_refused() {
            let mut answer = vec![0; HEADER + 72];
            answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            answer[HEADER + UID..][..4].copy_from_slice(&1000u32.to_ne_bytes());
            answer[HEADER + INODE..][..4].copy_from_slice(&77u32.to_ne_bytes());
            assert_eq!(decode(&answer).unwrap(), Some((77, 1000)));
            for length in 0..answer.len() {
                assert!(decode(&answer[..length]).is_err());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn our_own_connections_are_found_in_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let program = owner_of_connection(peer, accepted.local_addr().unwrap()).unwrap();
            assert_eq!(program.pid, std::process::id());
            assert_eq!(program.uid, nix::unistd::getuid().as_raw());
            assert!(!program.name.is_empty());
            drop(client);
        }
    }

    #[test]
    fn an_ipv6_socket_that_speaks_ipv4_is_found_too() {
        use socket2::{Domain, Socket, Type};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Ok(client) = Socket::new(Domain::IPV6, Type::STREAM, None) else { return };
        let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        client
            .connect(&SocketAddr::new(mapped.into(), listener.local_addr().unwrap().port()).into())
            .unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let program = owner_of_connection(peer, accepted.local_addr().unwrap()).unwrap();
        assert_eq!(program.pid, std::process::id());
    }

    #[test]
    fn a_connection_is_abandoned_when_its_program_closed_it_and_not_when_it_only_stopped_sending() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        let remote = accepted.local_addr().unwrap();
        assert!(!is_abandoned(peer, remote));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!is_abandoned(peer, remote));
        drop(client);
        assert!(is_abandoned(peer, remote));
        assert_eq!(owner_of_connection(peer, remote), None);
        assert!(!is_abandoned("192.0.2.1:1".parse().unwrap(), remote), "it is not on this host");
    }

    #[test]
    fn one_search_finds_the_owners_of_many() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut connections: Vec<_> =
            clients.iter().map(|client| (client.local_addr().unwrap(), address)).collect();
        connections.insert(7, ("127.0.0.1:1".parse().unwrap(), address));
        let owners = owners_of_connections(&connections);
        assert_eq!(owners[7], None);
        let ours = owners.iter().flatten().filter(|owner| owner.pid == std::process::id());
        assert_eq!(ours.count(), clients.len());
    }

    #[test]
    fn a_connection_that_is_not_there_has_no_owner() {
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owner_of_connection(nobody, nobody), None);
    }
}
