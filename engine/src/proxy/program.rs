//! Whose connection a flow is.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use multiway_edge::process::owners_of_connections;
use tokio::net::TcpStream;

use crate::flows::{FlowHandle, WeakFlowHandle};

/// Rest between two searches: each reads through the processes' open files, and one search finds
/// the owners of all connections that were made meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// Finds out in the background which programs flows belong to; clones share the work.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    searches: Arc<Mutex<Searches>>,
}

#[derive(Debug, Default)]
struct Searches {
    waiting: Vec<Question>,
    is_running: bool,
}

#[derive(Debug)]
struct Question {
    flow: WeakFlowHandle,
    /// The connection's ends as the program sees them.
    connection: (SocketAddr, SocketAddr),
}

impl Owners {
    /// Finds out which program `client` belongs to and notes it in `flow`.
    ///
    /// `destination` is where the program believes to be connected to: the original destination of
    /// a redirected connection, else the proxy. A flow that ends first stays without a name.
    pub fn identify(&self, flow: &FlowHandle, client: &TcpStream, destination: SocketAddr) {
        let Ok(peer) = client.peer_addr() else { return };
        // The program's own socket shows plain IPv4 where a dual-stack listener shows it mapped.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let connection = (plain(peer), plain(destination));
        let mut searches = self.lock();
        searches.waiting.push(Question { flow: flow.downgrade(), connection });
        if !searches.is_running {
            searches.is_running = true;
            tokio::spawn(self.clone().search());
        }
    }

    /// Searches until nobody waits.
    async fn search(self) {
        loop {
            let mut questions = {
                let mut searches = self.lock();
                searches.is_running = !searches.waiting.is_empty();
                if !searches.is_running {
                    return;
                }
                std::mem::take(&mut searches.waiting)
            };
            questions.retain(|question| question.flow.upgrade().is_some());
            let connections: Vec<_> = questions.iter().map(|question| question.connection).collect();
            let search = tokio::task::spawn_blocking(move || owners_of_connections(&connections));
            for (question, owner) in questions.iter().zip(search.await.unwrap_or_default()) {
                if let (Some(owner), Some(flow)) = (owner, question.flow.upgrade()) {
                    flow.set_program(owner.name);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Searches> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
