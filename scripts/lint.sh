#!/usr/bin/env bash
# Format of all C++ files, order of the includes, and clang-tidy on what changed since the commit BASE.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-HEAD}
failed=0

echo "[lint] clang-format"
git ls-files -z --cached --others --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' |
  xargs -0 -r .venv/bin/clang-format --dry-run -Werror || failed=1

echo "[lint] include order"
.venv/bin/python scripts/check_includes.py || failed=1

# A changed header is checked through the source of the same stem.
mapfile -t changed < <(
  { git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.h'
    git ls-files --others --exclude-standard '*.cpp' '*.h'
  } | sed 's/\.h$/.cpp/' | sort -u | xargs -r ls -d 2>/dev/null)
if ((${#changed[@]})); then
  echo "[lint] clang-tidy on ${#changed[@]} files changed since $base"
  .venv/bin/clang-tidy --quiet -p build "${changed[@]}" || failed=1
fi
exit "$failed"
