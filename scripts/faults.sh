#!/usr/bin/env bash
# Injects faults into training runs of the built program: 100 times SIGKILL, 50 lost ranks of four, a full disk, every
# failing call, clock jumps, slow ranks (tests/python/faults). Every run is resumed and compared with an uninterrupted one,
# byte by byte. Arguments: --quick, --seed N, KIND[:FIRST[-LAST]] (default: all kinds).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=python:tests/python OMP_NUM_THREADS=1
# Own mounts and network: the network cables between ranks are pulled and a small disk is filled.
as_user=(--user --map-root-user)
((EUID != 0)) || as_user=()
unshare "${as_user[@]}" --mount --net -- true || { echo "[faults] skipped: namespaces are not permitted here"; exit 0; }
exec unshare "${as_user[@]}" --mount --net -- .venv/bin/python -m faults "$@"
