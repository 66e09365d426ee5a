#!/usr/bin/env bash
# Builds Multiway and shows it: two emulated networks, a real server, one download over both.
set -euo pipefail
. "$(dirname "$0")/env.sh"

cargo build --release --locked -p multiway -p multiway-repro
target=$(realpath "${CARGO_TARGET_DIR:-target}")/release
demo=("$target/multiway-repro" --multiway "$target/multiway" demo "$@")
if [ "$(id -u)" = 0 ]; then
  exec "${demo[@]}"
fi
command -v sudo >/dev/null || { echo "network labs need root: run this as root" >&2; exit 1; }
exec sudo "${demo[@]}"
