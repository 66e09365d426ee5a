//! Namespaces without names: they live as long as a descriptor of this process or a process in them.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// A network namespace, and a mount namespace that shows its interfaces and its own resolver file.
#[derive(Debug)]
pub(crate) struct Namespaces {
    net: OwnedFd,
    mount: OwnedFd,
}

impl Namespaces {
    /// Makes both in a thread that ends at once, so that nothing but descriptors keeps them.
    pub(crate) fn create() -> Result<Self> {
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
                .context("cannot make a network namespace; run as root (CAP_SYS_ADMIN)")?;
            furnish_mounts()?;
            let open = |path: &str| File::open(path).with_context(|| format!("cannot open {path}"));
            Ok(Self {
                net: open("/proc/thread-self/ns/net")?.into(),
                mount: open("/proc/thread-self/ns/mnt")?.into(),
            })
        })
        .join()
        .expect("making a namespace does not panic")
    }

    /// The network namespace.
    pub(crate) fn net(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }

    /// Moves the calling thread into them, for good.
    pub(crate) fn enter(&self) -> Result<()> {
        let here = std::env::current_dir().context("cannot tell the current directory")?;
        // A thread may change its mount namespace only when it shares its root with no other.
        unshare(CloneFlags::CLONE_FS).context("cannot leave the process's root directory")?;
        setns(self.net.as_fd(), CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
        setns(self.mount.as_fd(), CloneFlags::CLONE_NEWNS).context("cannot enter a mount namespace")?;
        std::env::set_current_dir(&here).with_context(|| format!("cannot go back to {}", here.display()))
    }

    /// Makes a command run in them and die with the thread that starts it.
    pub(crate) fn adopt(&self, command: &mut Command) -> io::Result<()> {
        let (net, mount) = (self.net.try_clone()?, self.mount.try_clone()?);
        let enter = move || enter_child(net.as_raw_fd(), mount.as_raw_fd());
        #[expect(unsafe_code, reason = "only system calls run between fork and exec, and nothing allocates")]
        // SAFETY: `enter_child` is async-signal-safe: it makes system calls and touches only its stack.
        unsafe {
            command.pre_exec(enter);
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "setns without allocation, between fork and exec")]
fn enter_child(net: RawFd, mount: RawFd) -> io::Result<()> {
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    let mut here = [0; libc::PATH_MAX as usize];
    // SAFETY: the descriptors are open (the closure owns them), the buffer is as long as stated, and
    // getcwd closes what it wrote with a zero.
    unsafe {
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getcwd(here.as_mut_ptr(), here.len()).is_null() {
            return Err(io::Error::last_os_error());
        }
        check(libc::setns(net, libc::CLONE_NEWNET))?;
        check(libc::setns(mount, libc::CLONE_NEWNS))?;
        check(libc::chdir(here.as_ptr()))
    }
}

/// Gives a new mount namespace the sysfs of its network namespace, and a resolver file of its own.
fn furnish_mounts() -> Result<()> {
    const NOTHING: Option<&CStr> = None;
    let no_flags = MsFlags::empty();
    // Unmounts on the machine still reach us, so that the lab keeps nothing busy; ours stay here.
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_SLAVE, NOTHING)
        .context("cannot separate the mounts")?;

    if std::fs::exists(RESOLV_CONF).unwrap_or(false) {
        // In memory, so that it is gone with the namespace; /sys is only borrowed for a moment.
        mount(Some("tmpfs"), "/sys", Some("tmpfs"), no_flags, NOTHING).context("cannot mount a tmpfs")?;
        let own = "/sys/resolv.conf";
        std::fs::write(own, "# no name server in this lab host yet\n")?;
        mount(Some(own), RESOLV_CONF, NOTHING, MsFlags::MS_BIND, NOTHING)
            .context("cannot give the host its own /etc/resolv.conf")?;
        // Detached: whoever reads the machine's mounts at this moment would make it busy.
        umount2("/sys", MntFlags::MNT_DETACH).context("cannot give /sys back")?;
    }

    // A sysfs shows the interfaces of the namespace that mounted it. Control groups stay visible.
    let control_groups = File::open("/sys/fs").context("cannot open /sys/fs")?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), no_flags, NOTHING).context("cannot mount a sysfs")?;
    let source = format!("/proc/thread-self/fd/{}", control_groups.as_raw_fd());
    mount(Some(source.as_str()), "/sys/fs", NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)
        .context("cannot keep the control groups in sight")
}
