//! One end of an emulated link: a TUN device in a host's namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::{Context, Result};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The MTU of Ethernet, and so of most of the Internet.
pub(crate) const MTU: u16 = 1500;

/// The kernel's queue before the model must never drop: the model's own queue decides that. This
/// many packets are 150 MB, more than any lab link holds.
const KERNEL_QUEUE_PACKETS: u32 = 100_000;

nix::ioctl_write_ptr!(tun_set_carrier, b'T', 226, libc::c_int);

/// A TUN device; it vanishes when this is dropped.
pub(crate) struct Tun {
    device: SyncDevice,
}

impl Tun {
    /// Makes an interface in the calling thread's network namespace, up and without addresses.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let device = DeviceBuilder::new()
            .name(name)
            .layer(Layer::L3)
            .mtu(MTU)
            .tx_queue_len(KERNEL_QUEUE_PACKETS)
            .enable(true)
            .build_sync()
            .with_context(|| format!("cannot make the TUN interface {name}; is /dev/net/tun there?"))?;
        device.set_nonblocking(true).with_context(|| format!("cannot set up the TUN interface {name}"))?;
        Ok(Self { device })
    }

    /// The next packet the kernel sends out of the interface; none when it sends nothing.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        // An interface that is down reads as an error, which is no packet either.
        self.device.recv(buffer).ok()
    }

    /// Lets a packet arrive at the interface. One that is down takes none, as a real one.
    pub(crate) fn write(&self, packet: &[u8]) {
        // What a real interface cannot take is lost too.
        let _ = self.device.send(packet);
    }

    /// Plugs the cable in or out.
    pub(crate) fn set_carrier(&self, has_carrier: bool) -> io::Result<()> {
        let value = libc::c_int::from(has_carrier);
        #[expect(unsafe_code, reason = "TUNSETCARRIER has no safe wrapper")]
        // SAFETY: the descriptor is open and the kernel reads one int from the pointer.
        unsafe { tun_set_carrier(self.device.as_raw_fd(), &raw const value) }?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
