//! Drives the core over the kernel with tokio: the daemon, its parts, and downloads.

pub mod bond;
pub mod config;
pub mod context;
pub mod control;
pub mod daemon;
pub mod dns;
pub mod flows;
pub mod get;
pub mod journal;
pub mod origin;
pub mod paths;
mod private;
pub mod proxy;
pub mod relay;
pub mod split;
pub mod survey;
pub mod tls;
