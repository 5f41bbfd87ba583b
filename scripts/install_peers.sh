#!/usr/bin/env bash
# Installs the projects that the benchmarks compare with, each in its own environment, and skips what is already
# installed: vLLM in .venv-vllm, with its own torch (7 GB); llama.cpp, compiled for this CPU (250 MB), and torchtitan
# (50 MB) in .venv-llama and .venv-torchtitan, which add them to the packages of .venv. Arguments: which of them
# (default: vllm llama torchtitan).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[peers] $*"; }
die() { say "error: $*" >&2; exit 1; }

# Creates .venv-NAME from bench/peers/requirements-NAME.txt, unless it was made from the same files.
install() {
  local name=$1 hash packages
  local requirements=bench/peers/requirements-$name.txt environment=.venv-$name
  hash=$(cat "$requirements" requirements.txt | sha256sum | cut -d' ' -f1)
  [[ -f $environment/requirements.sha256 && $(<"$environment/requirements.sha256") == "$hash" ]] && return
  say "Python packages from $requirements in $environment"
  .venv/bin/python -m venv --clear "$environment"
  if [[ $name != vllm ]]; then
    for packages in .venv/lib/python3.*/site-packages; do
      echo "import site; site.addsitedir('$PWD/$packages')" >"${packages/.venv/$environment}/venv.pth"
    done
  fi
  # llama.cpp is built with the pinned tools of .venv; its examples need more.
  CMAKE_ARGS=-DLLAVA_BUILD=OFF PATH=$PWD/.venv/bin:$PATH "$environment/bin/python" -m pip install --quiet \
    --disable-pip-version-check --require-hashes --no-deps --no-build-isolation -r "$requirements"
  echo "$hash" >"$environment/requirements.sha256"
}

(($#)) || set -- vllm llama torchtitan
for name; do
  [[ -f bench/peers/requirements-$name.txt ]] || die "$name: expected vllm, llama or torchtitan"
done
for name; do install "$name"; done
