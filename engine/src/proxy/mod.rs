//! Where applications' connections come in.
//!
//! One port takes all of them ([`serve`]): connections that interception redirected here
//! ([`transparent`]), SOCKS5 ([`socks`]) and HTTP proxy requests ([`http`]). Once a flow's
//! destination and first bytes are known, plain HTTP goes to [`http`] and everything else through a
//! [`tunnel`] over one good path.

mod bonded;
pub mod http;
mod listener;
mod pipes;
mod presence;
mod program;
pub(crate) mod race;
pub(crate) mod relay;
mod socks;
mod transparent;
pub mod tunnel;

pub use listener::serve;
pub use program::Owners;
pub use relay::relay;
pub use transparent::HttpFlow;

#[cfg(test)]
mod testing;
