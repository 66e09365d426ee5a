//! DNS, once per path (FLEETY section 4.2).
//!
//! [`Resolver::resolve`] asks a path's own servers over that path, so that each path connects to
//! the server nearest to it. [`Resolver::serve`] answers applications: each of their queries goes
//! out on every usable path that is not to be spared, the first good answer goes back, and all are remembered, so that an
//! intercepted address and its name lead to the addresses of every other path
//! ([`Resolver::sibling_addresses`]).

mod error;
mod exchange;
mod lookup;
mod message;
mod resolver;
mod server;
mod uplinks;
mod upstreams;

pub use error::ResolveError;
pub use resolver::Resolver;
pub use uplinks::{ByteStream, Opening, Uplinks};
pub use upstreams::{SystemFiles, Upstreams};

#[cfg(test)]
mod testing;
