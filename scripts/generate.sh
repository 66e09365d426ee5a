#!/usr/bin/env bash
# Writes what is generated from the code: manual pages and completions (from the definition of the
# command line) and the API schema (from its types). With --check, says whether what is kept is current.
set -euo pipefail
. "$(dirname "$0")/env.sh"

readonly MAN=packaging/man COMPLETIONS=packaging/completions

cargo build --quiet --locked -p multiway
multiway=${CARGO_TARGET_DIR:-target}/debug/multiway

write_to() {
  mkdir -p "$1/$MAN" "$1/$COMPLETIONS"
  "$multiway" man "$1/$MAN"
  "$multiway" completions bash > "$1/$COMPLETIONS/multiway.bash"
  "$multiway" completions zsh > "$1/$COMPLETIONS/_multiway"
  "$multiway" completions fish > "$1/$COMPLETIONS/multiway.fish"
}

if [ "${1-}" != --check ]; then
  rm -rf "$MAN" "$COMPLETIONS"
  write_to .
  MULTIWAY_UPDATE=1 cargo test --quiet --locked -p multiway-api --test document
  exit
fi

# The API schema has a test of its own (api/tests/document.rs).
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
write_to "$new"
for directory in "$MAN" "$COMPLETIONS"; do
  if ! diff -ru "$directory" "$new/$directory"; then
    echo "$directory is stale: run scripts/generate.sh and commit what it writes" >&2
    exit 1
  fi
done
