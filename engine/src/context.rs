//! What everything that handles a flow needs.

use std::sync::{Arc, PoisonError, RwLock};

use multiway_core::flow::features::FeatureDatabase;
use multiway_core::paths::Preference;

use crate::bond::BondSlot;
use crate::dns::Resolver;
use crate::flows::FlowTable;
use crate::journal::Journal;
use crate::paths::PathTable;
use crate::proxy::Owners;
use crate::split::SharedBuffers;

/// The engine's shared parts; clones are the same parts.
#[derive(Debug, Clone)]
pub struct Context {
    /// The only way out.
    pub paths: PathTable,
    /// Names to addresses, per path.
    pub resolver: Resolver,
    /// The flows there are.
    pub flows: FlowTable,
    /// Whose they are.
    pub owners: Owners,
    /// Which requests are worth splitting.
    pub features: Features,
    /// What the user would rather have.
    pub preference: Preference,
    /// The relay, when one was joined.
    pub bond: BondSlot,
    /// The memory of all transfers.
    pub buffers: SharedBuffers,
    /// Where events worth telling a person are recorded.
    pub journal: Journal,
}

/// The flow-feature database in use; it can be replaced while flows are running.
#[derive(Debug, Clone)]
pub struct Features {
    current: Arc<RwLock<Arc<FeatureDatabase>>>,
}

impl Features {
    /// Starts with `database`.
    pub fn new(database: FeatureDatabase) -> Self {
        Self { current: Arc::new(RwLock::new(Arc::new(database))) }
    }

    /// The database in use now; what was taken earlier stays as it was.
    pub fn current(&self) -> Arc<FeatureDatabase> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `database` in its place.
    pub fn replace(&self, database: FeatureDatabase) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(database);
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::new(FeatureDatabase::built_in())
    }
}
