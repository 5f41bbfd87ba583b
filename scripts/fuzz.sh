#!/usr/bin/env bash
# Fuzzes the parsers of untrusted files and requests with libFuzzer and the address and undefined-behavior sanitizers:
# each TARGET (default: all, named as the folders of tests/fuzz/corpus, from where it starts) for SECONDS (default 30),
# JOBS at a time (default: one per core). New corpus entries are kept in build/fuzz/corpus; failing inputs are saved in
# build/fuzz/findings and fail the script. Prints executions, covered edges and features of every target.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "usage: [JOBS=n] scripts/fuzz.sh [SECONDS [TARGET...]]" >&2; exit 2; }
seconds=${1:-30}
jobs=${JOBS:-$(nproc)}
[[ $seconds =~ ^[1-9][0-9]*$ && $jobs =~ ^[1-9][0-9]*$ ]] || usage
targets=("${@:2}")
((${#targets[@]})) || for file in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$file" _fuzz.cpp)"); done
for target in "${targets[@]}"; do
  [[ -f tests/fuzz/${target}_fuzz.cpp ]] || { echo "error: no fuzz target $target in tests/fuzz" >&2; usage; }
done

out=build/fuzz
flags=(-std=c++20 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow
  -fno-sanitize-recover=all -Isrc -Itests)
mapfile -t sources <tests/fuzz/sources.txt # none of them use tensors
packages=(sentencepiece libpcre2-8 icu-uc libzstd cpp-httplib zlib libcrypto)

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

# Calls `function ARGUMENT` for each argument, `jobs` at a time. Fails if one of them does.
in_parallel() {
  local function=$1 argument running=0 failed=0
  shift
  for argument; do
    if ((running == jobs)); then wait -n || failed=1; running=$((running - 1)); fi
    "$function" "$argument" &
    running=$((running + 1))
  done
  while ((running > 0)); do wait -n || failed=1; running=$((running - 1)); done
  return "$failed"
}

object_of() { echo "$out/objects/$(tr / _ <<<"${1%.cpp}").o"; }

# Compiles a source file unless its object is newer than it and all headers.
compile() {
  local object
  object=$(object_of "$1")
  [[ $object -nt $1 && $object -nt $newest_header ]] && return
  "$clang" "${flags[@]}" $(pkg-config --cflags cpp-httplib) -fsanitize=fuzzer-no-link -c "$1" -o "$object"
}

link() {
  "$clang" "${flags[@]}" -fsanitize=fuzzer -DHERO_FUZZ_TARGET="read_$1" tests/fuzz/libfuzzer_main.cpp \
    "$(object_of "tests/fuzz/$1_fuzz.cpp")" "$out/parsers.a" $(pkg-config --libs "${packages[@]}") -pthread -o "$out/$1"
}

# With inputs of up to 16 KiB.
fuzz() {
  local target=$1 status=0 findings
  mkdir -p "$out/corpus/$target"
  TMPDIR=$temporary "$out/$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=2048 -seed=1 \
    -artifact_prefix="$out/findings/$target-" "$out/corpus/$target" "tests/fuzz/corpus/$target" \
    >"$out/$target.log" 2>&1 || status=1
  say "$target: $(sed -En 's/^#([0-9]+).* cov: ([0-9]+) ft: ([0-9]+).*/\1 executions, \2 edges, \3 features/p' \
    "$out/$target.log" | tail -n 1)"
  ((status == 0)) && return
  grep -a -m 3 -E '^finding|ERROR|SUMMARY|runtime error|what\(\)' "$out/$target.log" >&2 ||
    tail -n 20 "$out/$target.log" >&2
  findings=$(grep -a -o "$out/findings/[^ ]*" "$out/$target.log" | tail -n 1)
  say "error: $target: found a failing input; reproduce with: $out/$target $findings" >&2
  return 1
}

mkdir -p "$out/objects" "$out/findings"
find_clang || { install_clang; find_clang || die "the installed clang++ has no libFuzzer"; }
say "compiling with $clang"
newest_header=$(find src tests -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)
drivers=()
for target in "${targets[@]}"; do drivers+=("tests/fuzz/${target}_fuzz.cpp"); done
in_parallel compile "${sources[@]}" "${drivers[@]}" || die "compilation failed"
rm -f "$out/parsers.a"
for source in "${sources[@]}"; do object_of "$source"; done | xargs ar rcs "$out/parsers.a"
in_parallel link "${targets[@]}" || die "linking failed"
# Targets that need files write them here: in memory where possible.
temporary=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$temporary"' EXIT
say "${#targets[@]} targets, $seconds s each, $jobs at a time"
in_parallel fuzz "${targets[@]}"
