#!/usr/bin/env bash
# Checks formatting of all C++ and Python files, the include order and the sources of the fuzz targets, runs ruff and mypy on Python, and clang-tidy on
# files changed since commit BASE.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-HEAD}
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

echo "[lint] clang-format"
mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh')
if ! .venv/bin/clang-format --dry-run -Werror "${sources[@]}" 2>"$log"; then
  grep 'error:' "$log" | cut -d: -f1 | uniq -c | awk '{ print $2 ": " $1 " violations; run `make format` to fix them" }'
  failed=1
fi

echo "[lint] include order"
.venv/bin/python scripts/check_includes.py || failed=1

echo "[lint] sources of the fuzz targets"
.venv/bin/python scripts/check_fuzz_sources.py || failed=1

echo "[lint] ruff"
.venv/bin/ruff check --quiet || failed=1
.venv/bin/ruff format --check --quiet || failed=1

echo "[lint] mypy"
.venv/bin/mypy --no-error-summary || failed=1

# A changed header is checked through the source file with the same stem.
mapfile -t changed < <(
  { git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.h'
    git ls-files --others --exclude-standard '*.cpp' '*.h'
  } | sed 's/\.h$/.cpp/' | sort -u | xargs -r ls -d 2>/dev/null)
if ((${#changed[@]})); then
  echo "[lint] clang-tidy on ${#changed[@]} files changed since $base"
  # Flags of single files: the build compiles them in groups.
  .venv/bin/cmake -S . -B build/lint -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DHERO_UNITY=OFF \
    --log-level=WARNING >/dev/null
  # omp.h comes from g++; searched last, so that clang uses its own intrinsics.
  .venv/bin/clang-tidy --quiet -p build/lint --extra-arg=-idirafter --extra-arg="$(g++ -print-file-name=include)" \
    "${changed[@]}" || failed=1
fi
exit "$failed"
