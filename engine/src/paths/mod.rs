//! The paths of this device: which there are, connections over them, and what is known of each.
//!
//! [`PathTable`] is the one place where sockets to the outside are opened. It watches interfaces,
//! binds each connection to its path, has the kernel's counters read while the connection lives,
//! and remembers what was measured.

mod clock;
mod error;
mod memory;
mod portal;
mod sampler;
mod state;
mod store;
mod stream;
mod table;

pub use clock::{now, now_with_sleep};
pub use error::{ConnectError, PathTableError};
pub use memory::default_history_file;
pub use portal::{PortalProbe, ProbeUrlError};
pub use stream::{ConnectionId, TrackedReadHalf, TrackedStream, TrackedWriteHalf};
pub use table::{PathSnapshot, PathTable, PathTableConfig};
