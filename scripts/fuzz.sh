#!/usr/bin/env bash
# Fuzzes the parsers of model folders for SECONDS each (default 30) with libFuzzer and the address and
# undefined-behavior sanitizers, starting from tests/fuzz/corpus. New corpus entries are kept in build/fuzz; failing
# inputs are saved in build/fuzz/findings and fail the script.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "usage: scripts/fuzz.sh [SECONDS]" >&2; exit 2; }

out=build/fuzz
flags=(-std=c++20 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc -Itests)
sources=(src/config/{check,config,field_values,fields,json_section,layers,model_fields,overrides,router_kinds,toml_file}.cpp
  src/io/{durable_file,file_io,json,suggest}.cpp
  src/hf/{model_config_read,safetensors_parse,safetensors_write,weight_shapes}.cpp
  src/model/counts.cpp src/model/router_kind*.cpp tests/fuzz/targets.cpp)

say() { echo "[fuzz] $*"; }
die() { say "error: $*" >&2; exit 1; }

can_fuzz() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$1" -x c++ -fsanitize=fuzzer,address - -o "$out/probe" >/dev/null 2>&1
}

find_clang() {
  local name
  for name in "${CLANGXX:-}" clang++ clang++-{20,19,18,17,16,15,14}; do
    [[ -n $name ]] && command -v "$name" >/dev/null && can_fuzz "$name" && { clang=$name; return 0; }
  done
  return 1
}

install_clang() {
  command -v apt-get >/dev/null || die "no clang++ with libFuzzer, and no apt-get to install it"
  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo; install manually: clang-14 libclang-rt-14-dev"
    as_root=(sudo)
  fi
  say "Debian packages: clang-14 libclang-rt-14-dev"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    clang-14 libclang-rt-14-dev </dev/null >"$out/apt.log" 2>&1 || { cat "$out/apt.log" >&2; die "apt-get install failed"; }
}

# Compiles one object file per source, one job per core.
compile() {
  local source running=0
  mkdir -p "$out/objects"
  for source in "${sources[@]}" tests/fuzz/{safetensors,index,config}_fuzz.cpp; do
    "$clang" "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$out/objects/$(basename "$source" .cpp).o" &
    ((++running % $(nproc) != 0)) || wait_all
  done
  wait_all
}

wait_all() {
  local job
  for job in $(jobs -p); do wait "$job" || die "compilation failed"; done
}

# Fuzzes one target, starting from earlier corpus entries and tests/fuzz/corpus, with inputs up to 16 KiB.
fuzz() {
  local target=$1 objects=() source
  for source in "${sources[@]}" "$target"_fuzz.cpp; do objects+=("$out/objects/$(basename "$source" .cpp).o"); done
  "$clang" "${flags[@]}" -fsanitize=fuzzer "${objects[@]}" -o "$out/$target"
  mkdir -p "$out/corpus/$target" "$out/findings"
  say "$target: $seconds s"
  if ! "$out/$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -seed=1 \
    -artifact_prefix="$out/findings/$target-" "$out/corpus/$target" "tests/fuzz/corpus/$target" >"$out/$target.log" 2>&1; then
    tail -n 40 "$out/$target.log" >&2
    die "$target: found a failing input; reproduce with: $out/$target $out/findings/$target-..."
  fi
  tail -n 1 "$out/$target.log"
}

mkdir -p "$out"
find_clang || { install_clang; find_clang || die "the installed clang++ has no libFuzzer"; }
say "compiling with $clang"
compile
for target in safetensors index config; do fuzz "$target"; done
