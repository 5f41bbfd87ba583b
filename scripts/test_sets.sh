#!/usr/bin/env bash
# Runs the tests of numbers once with each instruction set that this processor has, in our blocks of products (HERO_GEMM)
# and in the library's kernels (ATEN_CPU_CAPABILITY). Names of sets: only these.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[sets] $*"; }
has() { grep -qwm1 "$1" /proc/cpuinfo; }

# set, the flag of /proc/cpuinfo that tells, and what the library and oneDNN have then
table="amx_bf16 amx_bf16 avx512 ALL
avx512_bf16 avx512_bf16 avx512 AVX512_CORE_BF16
avx512 avx512f avx512 AVX512_CORE
avx2 avx2 avx2 AVX2
sse2 sse2 default SSE41"
cpp='^(ops|model|model_oracle|paper|loss|train_step|analyze|generate)$'
python=(torch_ops hf_bf16 hf_parity hf_modeling patch router_module language_model upcycling options generate train
  analyze)

files=("${python[@]/#/tests/python/test_}")
files=("${files[@]/%/.py}")
failed=()
while read -r set flag library onednn; do
  [[ $# -eq 0 || " $* " == *" $set "* ]] || continue
  has "$flag" || { say "$set: not on this processor"; continue; }
  say "$set"
  export HERO_GEMM=$set ATEN_CPU_CAPABILITY=$library ONEDNN_MAX_CPU_ISA=$onednn
  .venv/bin/ctest --test-dir build --output-on-failure -j "$(nproc)" -R "$cpp" || failed+=("$set: C++")
  # Where the library has no vectors, the C++ that torch.compile writes is wrong.
  .venv/bin/python -m pytest -q -m "not long" -k "not inductor" "${files[@]}" || failed+=("$set: Python")
done <<<"$table"
((${#failed[@]} == 0)) || { printf '[sets] failed: %s\n' "${failed[@]}" >&2; exit 1; }
