#!/usr/bin/env bash
# Runs the tests of hero_moe.track against wandb, MLflow and trackio in their offline modes. They are installed from
# requirements-track.txt in .venv-track, which adds them to the packages of .venv; 250 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "[track] $*"; }

wanted=$(cat requirements.txt requirements-track.txt | sha256sum | cut -d' ' -f1)
stamp=.venv-track/requirements.sha256
if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
  say "Python packages from requirements-track.txt in .venv-track"
  .venv/bin/python -m venv --clear .venv-track
  for packages in .venv/lib/python3.*/site-packages; do
    echo "import site; site.addsitedir('$PWD/$packages')" >"${packages/.venv/.venv-track}/venv.pth"
  done
  .venv-track/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
    -r requirements-track.txt
  echo "$wanted" >"$stamp"
fi
export DO_NOT_TRACK=1 MLFLOW_DISABLE_TELEMETRY=true
.venv-track/bin/python -c "import mlflow, trackio, wandb"  # without them, the tests would be skipped
.venv-track/bin/python -m pytest -q --durations 5 tests/python/track
