# Sourced by the other scripts: where their tools are, whatever shell started them.
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -r "$HOME/.cargo/env" ]; then
  # shellcheck disable=SC1091
  . "$HOME/.cargo/env"
fi
# nft, nginx and ip live where a plain user's PATH does not lead.
PATH="$PATH:/usr/sbin:/sbin"
export PATH

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
