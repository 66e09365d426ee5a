//! The relay in use; joining another one changes it while flows are running.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use multiway_api::RelayStatus;
use multiway_core::paths::PathId;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::device::Bond;
use super::membership;
use crate::config::BondConfig;
use crate::dns::Resolver;
use crate::journal::Journal;
use crate::paths::PathTable;

/// How often it is looked whether another relay was joined.
const LOOK: Duration = Duration::from_secs(1);

/// Clones share the relay in use.
#[derive(Debug, Clone, Default)]
pub struct BondSlot {
    current: Arc<RwLock<Option<Bond>>>,
}

impl BondSlot {
    /// The relay in use.
    pub fn current(&self) -> Option<Bond> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What goes through the relay, if one was joined; `interface_of` names a path.
    pub(crate) fn status(&self, interface_of: impl Fn(PathId) -> String) -> Vec<RelayStatus> {
        self.current().into_iter().map(|bond| bond.status(&interface_of)).collect()
    }

    /// Takes leave of the relay in use: its streams are over, and it is told.
    pub(crate) async fn leave(&self) {
        if let Some(bond) = self.current() {
            bond.leave().await;
        }
    }

    /// Follows the file in which `multiway join` keeps its invite, until dropped.
    pub async fn follow(
        self,
        config: BondConfig,
        file: PathBuf,
        paths: PathTable,
        resolver: Resolver,
        journal: Journal,
    ) {
        let mut known = None;
        let mut complained = false;
        let mut running = JoinSet::new();
        loop {
            match membership::load(&file) {
                Ok(found) if found != known => {
                    complained = false;
                    // The session with the relay before ends with its task.
                    self.leave().await;
                    running.shutdown().await;
                    let bond = found.clone().and_then(|invite| {
                        let (paths, resolver) = (paths.clone(), resolver.clone());
                        let made = Bond::new(config.clone(), invite, paths, resolver, journal.clone());
                        made.inspect_err(|error| tracing::warn!(%error, "the relay cannot be used")).ok()
                    });
                    if let Some(bond) = &bond {
                        tracing::info!(relay = %bond.invite().address, "flows are bonded through the relay");
                        running.spawn(bond.clone().run());
                    }
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = bond;
                    known = found;
                }
                Ok(_) => complained = false,
                Err(error) if !complained => {
                    complained = true;
                    tracing::warn!(%error, "the relay stays as it was");
                }
                Err(_) => {}
            }
            sleep(LOOK).await;
        }
    }
}
