#!/usr/bin/env bash
# Runs all tests except the long ones once per instruction set of this CPU, in our GEMM kernels (HERO_GEMM) and in
# PyTorch and oneDNN (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA). Arguments: instruction sets (default: all), or
# --without-best: all but the one that the tests use by default.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[sets] $*"; }
has() { grep -qwm1 "$1" /proc/cpuinfo; }

# set; required flag in /proc/cpuinfo; ATEN_CPU_CAPABILITY; ONEDNN_MAX_CPU_ISA
table="amx_bf16 amx_bf16 avx512 ALL
avx512_bf16 avx512_bf16 avx512 AVX512_CORE_BF16
avx512 avx512f avx512 AVX512_CORE
avx2 avx2 avx2 AVX2
sse2 sse2 default SSE41"

skipped=
[[ ${1-} != --without-best ]] || { skipped=$(build/hero bench gemm | awk '$NF == "used" { print $1 }'); shift; }
failed=()
while read -r set flag library onednn; do
  [[ $# -eq 0 || " $* " == *" $set "* ]] || continue
  has "$flag" || { say "$set: not supported by this CPU"; continue; }
  [[ $set != "$skipped" ]] || continue
  say "$set"
  export HERO_GEMM=$set ATEN_CPU_CAPABILITY=$library ONEDNN_MAX_CPU_ISA=$onednn
  .venv/bin/ctest --test-dir build --output-on-failure -j "$(nproc)" -LE long || failed+=("$set: C++")
  # torch.compile's C++ backend requires vector instructions.
  select=(-m "not long")
  [[ $set != sse2 ]] || select+=(-k "not inductor")
  .venv/bin/python -m pytest -q --numprocesses "$(nproc)" --dist loadfile "${select[@]}" || failed+=("$set: Python")
done <<<"$table"
((${#failed[@]} == 0)) || { printf '[sets] failed: %s\n' "${failed[@]}" >&2; exit 1; }
