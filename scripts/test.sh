#!/usr/bin/env bash
# All tests, with a count of those that passed, failed and could not run here.
# Arguments choose packages (`-p multiway-core`) instead of all.
set -euo pipefail
. "$(dirname "$0")/env.sh"

log=target/test.log
mkdir -p target

# Output of tests that passed is of interest only where it says why one was skipped.
brief() {
  awk '
    /^successes:$/ { quiet = 1 }
    /^failures:$/ || /^test result:/ || /^     Running / || /^   Doc-tests / { quiet = 0 }
    !quiet || /SKIPPED/ { print; fflush() }
  '
}

say "tests"
status=0
[ $# -gt 0 ] || set -- --workspace
# A failure in one package does not hide those in others.
cargo test "$@" --locked --no-fail-fast -- --show-output 2>&1 | tee "$log" | brief || status=$?

say "manual pages, completions and API schema are as generated"
scripts/generate.sh --check || status=1

counts=$(awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
              END { printf "%d passed, %d failed, %d ignored", passed, failed, ignored }' "$log")
skipped=$(grep -c 'SKIPPED' "$log" || true)
if [ "$skipped" -gt 0 ]; then
  say "$skipped of these did not run:"
  grep -o 'SKIPPED.*' "$log" | sort | uniq -c | sort -rn
fi
failed=$(awk '/^test .* FAILED$/ { print "  " $2 }' "$log")
if [ -n "$failed" ]; then
  say "failed:"
  echo "$failed"
fi
say "$counts, $skipped skipped"
exit "$status"
