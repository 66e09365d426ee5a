#!/usr/bin/env bash
# Installs what building and testing Multiway needs and a Debian 12 machine may lack.
# Does nothing, quickly, when all is there. Asks for root only when something must be installed.
set -euo pipefail

# What each is for: a C compiler for SQLite and ring; nftables for interception; iproute2 to set up the
# lab; nginx as the real server; aria2 and mptcpize as peers; curl, wget, python3, ffmpeg and apt-utils
# (apt-ftparchive) with dpkg-dev, git, ssh with its server, and iperf3 as the unmodified programs of the
# end-to-end tests, dig (bind9-dnsutils) to ask the name servers of the lab, haproxy before two relays,
# conntrack to make a NAT forget, faketime to set a program's clock, and chromium (120 MB) to load a page.
readonly PACKAGES=(
  ca-certificates gcc libc6-dev make pkg-config
  nftables libnftables1 iproute2 procps nginx-light aria2 mptcpize
  curl wget python3 ffmpeg apt-utils dpkg-dev bind9-dnsutils
  git openssh-client openssh-server openssl iperf3 haproxy conntrack faketime chromium
)
# The oldest compiler the workspace takes, as in Cargo.toml, and what is installed when there is none.
readonly RUST_VERSION=1.95.0

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "installing packages needs root and there is no sudo; run this as root: $*"
  fi
}

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_packages() {
  local missing=()
  for package in "${PACKAGES[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "this is no Debian; install by hand: ${missing[*]}"
  say "installing ${missing[*]}"
  # Debian starts a service when it installs one; the lab starts its own nginx where it needs it.
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    as_root sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy"
    trap "as_root rm -f $policy" EXIT
  fi
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
}

# Debian 12's own cargo (0.66) is older than the language edition used here.
install_rust() {
  # shellcheck disable=SC1091
  if [ -r "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
  if ! command -v cargo >/dev/null; then
    if ! command -v rustup >/dev/null && apt-cache show rustup >/dev/null 2>&1; then
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends rustup
    fi
    if command -v rustup >/dev/null; then
      say "installing Rust $RUST_VERSION by rustup"
      rustup default "$RUST_VERSION"
      rustup component add rustfmt clippy
    else
      say "installing Rust $RUST_VERSION from https://sh.rustup.rs, as https://rustup.rs says"
      curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --no-modify-path --profile minimal -c rustfmt -c clippy --default-toolchain "$RUST_VERSION"
    fi
  fi
  # shellcheck disable=SC1091
  if [ -r "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
  command -v cargo >/dev/null || die "there is still no cargo; see https://rustup.rs"
  local have
  have=$(rustc --version | cut -d' ' -f2)
  if [ "$(printf '%s\n%s\n' "$RUST_VERSION" "${have%%-*}" | sort -V | head -1)" != "$RUST_VERSION" ]; then
    die "Rust $have is too old: Multiway needs $RUST_VERSION; run \`rustup update stable\`"
  fi
}

install_packages
install_rust
