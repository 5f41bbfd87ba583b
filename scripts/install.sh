#!/usr/bin/env bash
# Installs what the build, the tests and the demo need on a bare Debian 12:
# Debian packages (as root or through sudo), then the Python environment .venv from requirements.txt.
# What is there already is left alone, so it can be run before every build.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[install] $*"; }
die() { say "error: $*" >&2; exit 1; }

packages=(
  g++ make ccache pkg-config                       # compiler, cached
  python3 python3-venv                             # .venv: LibTorch, CMake and Ninja come as wheels
  python3-dev                                      # torch.compile builds against Python.h
  libcli11-dev                                     # command line
  libtomlplusplus-dev nlohmann-json3-dev           # configuration, metadata
  libsentencepiece-dev libpcre2-dev libicu-dev     # tokenizers
  libssl-dev                                       # libcrypto: hashes of checkpoint files
  zlib1g-dev libzstd-dev                           # compressed corpora
  libgloo-dev                                      # headers of the wheel's collectives between CPUs
  libcpp-httplib-dev                               # hero serve
  bubblewrap                                       # sandbox of the programs that HumanEval runs
  libgtest-dev libbenchmark-dev iproute2           # tests (ip: of two hosts), benchmarks
  chromium chromium-driver                         # tests of the pages
)

install_packages() {
  command -v dpkg-query >/dev/null ||
    { say "no Debian package manager here; needed from the system: ${packages[*]}"; return 0; }
  local missing=() name
  for name in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo; install by hand: ${missing[*]}"
    as_root=(sudo)
  fi
  say "Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1 ||
    { cat "$log" >&2; die "apt-get install failed"; }
  changed=1
}

install_python() {
  local python=/usr/bin/python3 stamp wanted
  [[ -x $python ]] || python=$(command -v python3) || die "no python3"
  wanted=$(sha256sum requirements.txt | cut -d' ' -f1)
  stamp=.venv/requirements.sha256
  [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]] && return 0

  if [[ ! -x .venv/bin/pip ]]; then
    say ".venv from $("$python" --version)"
    "$python" -m venv --clear .venv
  fi
  rm -f "$stamp"
  say "Python packages from requirements.txt (LibTorch is several GB; this takes minutes)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --use-pep517 \
    -r requirements.txt
  echo "$wanted" >"$stamp"
  changed=1
}

# .venv/bin/python finds the package in this checkout, and .venv/bin/lm_eval its model.
link_package() {
  local found
  for found in .venv/lib/python3.*/site-packages; do
    { echo "$PWD/python"; cat python/hero_moe_lm_eval.pth; } >"$found/hero_moe.pth"
  done
}

changed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_packages
install_python
link_package
if ((changed)); then say "done"; else say "everything is there already"; fi
