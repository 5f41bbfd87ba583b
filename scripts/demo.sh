#!/usr/bin/env bash
# From nothing to a comparison: a corpus, a baseline and a HERO model of the same size and seed, evaluation, report,
# a sample of text. Each step is skipped when its result is there, so an interrupted run goes on where it was.
# Usage: scripts/demo.sh [FILE_OR_FOLDER ...]   (default: the Python sources that came with the installation)
set -euo pipefail
cd "$(dirname "$0")/.."

hero=build/hero
run=runs/demo
name=python
say() { echo; echo "[demo] $*"; }

if (($#)); then
  inputs=("$@")
  run=runs/demo-$(printf '%s\n' "$@" | cksum | cut -d' ' -f1)
  name=text
else
  packages=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
  inputs=("$packages"/{torch,sympy,networkx,numpy})
fi
tokenizer=$run/data/tokenizer.model
corpus=$run/data/$name
mkdir -p "$run/data"

if [[ ! -f $tokenizer ]]; then
  say "training a tokenizer on ${inputs[*]}"
  "$hero" data tokenizer --input "${inputs[@]}" --vocab-size 8192 --skip-invalid --out "$tokenizer"
fi
if [[ ! -f $corpus-valid.idx ]]; then
  say "turning the text into token files"
  "$hero" data tokenize --input "${inputs[@]}" --tokenizer "$tokenizer" --skip-invalid --out "$corpus"
fi

for kind in baseline hero; do
  say "training the $kind model in $run/$kind"
  "$hero" train --config configs/demo.toml --config "configs/$kind.toml" \
    --data "$corpus-train" --run "$run/$kind" --resume
done

for kind in baseline hero; do
  say "evaluating the $kind model on the held-out documents"
  "$hero" eval "$run/$kind" --data "$corpus-valid"
done

say "comparing the two"
"$hero" report "$run/baseline" "$run/hero" --out "$run/report.html"

say "a few lines from the HERO model"
"$hero" generate "$run/hero" --prompt "def " --max-tokens 64
say "report: $run/report.html"
say "one pair of runs is not evidence: $hero study compares variants over several seeds (docs/study.md)"
