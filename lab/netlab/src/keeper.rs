//! The thread that starts long-lived processes.
//!
//! The kernel kills a lab's process when the thread that started it ends (PR_SET_PDEATHSIG counts
//! threads, not processes), so such processes are started by a thread that lives as long as the lab.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context, Result};

struct Order {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

/// A handle to the thread; it ends with the last handle.
#[derive(Clone)]
pub(crate) struct Keeper {
    orders: Sender<Order>,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self> {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("lab keeper".to_owned())
            .spawn(move || {
                for Order { mut command, reply } in inbox {
                    // The asker waits for it, unless it panicked.
                    let _ = reply.send(command.spawn());
                }
            })
            .context("cannot start a thread")?;
        Ok(Self { orders })
    }

    pub(crate) fn spawn(&self, command: Command) -> io::Result<Child> {
        let (reply, answer) = channel();
        let gone = || io::Error::other("the lab's keeper thread is gone");
        self.orders.send(Order { command, reply }).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}
