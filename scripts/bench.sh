#!/usr/bin/env bash
# Measures Multiway beside its peers in one run; tables on the terminal, JSON in bench-results/.
# QUICK=1 takes a few cells and fewer runs. Arguments name benches: grid fig10 blackhole overhead concurrent.
set -euo pipefail
. "$(dirname "$0")/env.sh"

benches=("$@")
[ $# -gt 0 ] || benches=(grid fig10 blackhole overhead concurrent)
options=()
[ -z "${QUICK-}" ] || options+=(--quick)

cargo build --release --locked -p multiway -p multiway-repro
target=${CARGO_TARGET_DIR:-target}/release
[ "$(id -u)" = 0 ] || { echo "network labs need root: run this as root" >&2; exit 1; }
# A thousand concurrent downloads are a thousand sockets.
ulimit -n "$(ulimit -H -n)"
mkdir -p bench-results
for bench in "${benches[@]}"; do
  "$target/multiway-repro" --multiway "$target/multiway" bench "$bench" "${options[@]}" \
    --json "bench-results/$bench.json"
done
