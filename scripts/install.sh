#!/usr/bin/env bash
# Installs the dependencies of the build, the tests and the demo on Debian 12: Debian packages (as root or with sudo)
# and the Python environment .venv from requirements.txt. Skips what is already installed, so it can run before every
# build.
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
  libgloo-dev                                      # Gloo headers for CPU collectives
  libcpp-httplib-dev                               # hero serve
  bubblewrap                                       # sandbox for HumanEval programs
  libgtest-dev libbenchmark-dev iproute2           # tests (ip: network namespaces), benchmarks
  chromium chromium-driver                         # browser tests of the HTML pages
)

install_packages() {
  command -v dpkg-query >/dev/null ||
    { say "dpkg not found; install these packages manually: ${packages[*]}"; return 0; }
  local missing=() name
  for name in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo; install manually: ${missing[*]}"
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
  [[ -x $python ]] || python=$(command -v python3) || die "python3 not found"
  wanted=$(sha256sum requirements.txt | cut -d' ' -f1)
  stamp=.venv/requirements.sha256
  [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]] && return 0

  if [[ ! -x .venv/bin/pip ]]; then
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
  fi
  rm -f "$stamp"
  say "Python packages from requirements.txt (LibTorch is several GB, this takes minutes)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --use-pep517 \
    -r requirements.txt
  echo "$wanted" >"$stamp"
  changed=1
}

# Makes the package importable in .venv/bin/python and registers its model with .venv/bin/lm_eval.
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
if ((changed)); then say "done"; else say "everything is already installed"; fi
