#!/usr/bin/env bash
# Everything that can be found wrong without running the code.
set -euo pipefail
. "$(dirname "$0")/env.sh"

say "formatting"
cargo fmt --all --check

say "clippy, warnings are errors"
cargo clippy --quiet --workspace --all-targets --locked -- -D warnings

say "licences, bans and sources of the dependencies"
command -v cargo-deny >/dev/null || cargo install --quiet --locked cargo-deny --version '^0.20'
cargo deny --log-level error check licenses bans sources
