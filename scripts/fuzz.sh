#!/usr/bin/env bash
# Runs each fuzz target for a few seconds (SECONDS_EACH) from the seeds that are kept.
set -euo pipefail
. "$(dirname "$0")/env.sh"

seconds=${SECONDS_EACH:-5}
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz

mkdir -p fuzz/target
for target in $(cargo fuzz list); do
  say "$target for $seconds s"
  mkdir -p "fuzz/corpus/$target"
  # Nothing in the targets is unsafe, so a stable compiler without sanitizers finds what there is.
  log=fuzz/target/$target.log
  if ! cargo fuzz run -s none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=70000 -timeout=10 -print_final_stats=1 >"$log" 2>&1; then
    tail -40 "$log"
    echo "$target failed; an input that makes it fail is in fuzz/artifacts/$target" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|new_units_added' "$log"
done
