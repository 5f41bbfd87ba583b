#!/usr/bin/env bash
# Builds the program and the C++ tests with sanitizers and runs them. Arguments: address (AddressSanitizer and
# UndefinedBehaviorSanitizer, all tests; build/address) or thread (ThreadSanitizer, tests with threads; build/thread),
# then names of tests (default: those of the sanitizer).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
[[ $kind == address || $kind == thread ]] || { echo "usage: scripts/sanitize.sh address|thread [TEST...]" >&2; exit 2; }
shift
tests=("$@")
out=build/$kind
.venv/bin/cmake -S . -B "$out" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DHERO_SANITIZE="$kind" \
  --log-level=WARNING >/dev/null
if [[ $kind == thread && ${#tests[@]} == 0 ]]; then tests=(io data distributed failure checkpoint run_logs server); fi

# LibTorch and the Python interpreter keep memory until the process ends, so leaks are not reported.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
# Locks that LibTorch, which is not instrumented, releases count as held; the detector of deadlocks ends at 64 of them.
export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:halt_on_error=1:detect_deadlocks=0
if [[ $kind == thread ]]; then export OMP_NUM_THREADS=1; fi
if ((${#tests[@]})); then
  .venv/bin/ninja -C "$out" "${tests[@]/#/test_}"
  pattern=$(IFS='|'; echo "${tests[*]}")
  exec .venv/bin/ctest --test-dir "$out" --output-on-failure -R "^($pattern)\$"
fi
.venv/bin/ninja -C "$out"
.venv/bin/ctest --test-dir "$out" --output-on-failure
# The Python tests of the program; those that load libhero.so would need an instrumented Python.
HERO_PROGRAM=$PWD/$out/hero exec .venv/bin/python -m pytest -q tests/python/cli tests/python/data tests/python/train
