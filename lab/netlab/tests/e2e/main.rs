//! Multiway as its users meet it: the shipped binary and unmodified programs on real kernels.
//!
//! Each test builds a network of its own, one at a time, and compares every byte that a program got.

mod bond_world;
mod support;
mod wire;

mod bond;
mod bond_balanced;
mod bond_fast_join;
mod bond_faults;
mod bond_frozen;
mod bond_history;
mod bond_interop;
mod bond_interop_relay;
mod bond_metered;
mod bond_programs;
mod bond_security;
mod bond_service;
mod bond_windows;
mod cables;
mod crowd;
mod failopen;
mod get;
mod hostile;
mod names;
mod programs;
mod proxy;
