"""The benchmarks on a trained model: both engines agree; kills; lm_eval's own command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import evals_data
from hero_moe.evals import __main__ as command
from hero_moe.evals.benchmarks import BENCHMARKS, SUITE
from hero_moe.evals.loading import Suite
from program import ROOT, run_hero, training

pytestmark = pytest.mark.usefixtures("programs")

PYTHON = ROOT / "python"
OURS = {"PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evals")
    suite = Suite(folder)
    evals_data.write_all(folder, {key: suite.subjects(b) for key, b in BENCHMARKS.items()}, 12, 1)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of a few steps, and its export with modeling code."""
    folder = tmp_path_factory.mktemp("trained")
    settings = {"model.max_position_embeddings": 128, "router.kind": "hero", "optim.lr": 1e-2}
    run_hero(*training(folder / "run", data, settings))
    run_hero("export", folder / "run", folder / "exported")
    return folder / "run", folder / "exported"


def items(out: Path, key: str) -> list[dict]:
    with (out / f"{key}.jsonl").open() as lines:
        return list(map(json.loads, lines))[1:]


def test_both_engines(trained: tuple[Path, Path], files: Path, tmp_path: Path) -> None:
    """All texts and scores are equal, and log-probabilities up to rounding."""
    torch.set_num_threads(1)
    words = ["--data-dir", str(files), "--limit", "3", "--dtype", "fp32", "--device", "cpu"]
    for backend, model in zip(("hero", "hf"), trained, strict=True):
        out = ["--out", str(tmp_path / backend), "--backend", backend, "--models", f"m={model}"]
        assert command.main([*words, *out]) == 0
    for key in BENCHMARKS:
        ours, theirs = (items(tmp_path / backend / "m", key) for backend in ("hero", "hf"))
        assert len(ours) == 3
        for got, expected in zip(ours, theirs, strict=True):
            if isinstance(got["response"], list):
                assert got["response"] == pytest.approx(expected["response"], abs=1e-3, rel=0)
                got, expected = (item | {"response": None} for item in (got, expected))
            assert got == expected
    tables = [(tmp_path / backend / "table.csv").read_text() for backend in ("hero", "hf")]
    assert tables[0] == tables[1]


def start_evals(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hero_moe.evals", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=os.environ | OURS, text=True, **pipes)


def test_command(trained: tuple[Path, Path], files: Path, tmp_path: Path) -> None:
    """The command prints the table on stdout and progress on stderr."""
    words = ["--data-dir", files, "--limit", 3, "--out", tmp_path / "out", "--tasks", "piqa", "lambada"]
    done = start_evals("--models", f"a={trained[0]}", f"b={trained[1]}", *words)
    table, progress = done.communicate()
    assert done.returncode == 0, progress
    assert table.startswith("| Model | LAMBADA |") and "\n| b − a |" in table
    assert "Average of 2 of the 13" in table
    assert "a PIQA: 100%" in progress and "item/s" in progress and "Running" not in progress
    assert (tmp_path / "out" / "table.md").read_text() == table
    path = start_evals("--include-path")
    assert path.communicate()[0] == f"{SUITE}\n"


@pytest.mark.long
def test_kills(trained: tuple[Path, Path], files: Path, tmp_path: Path) -> None:
    """After repeated kills, the files equal those of an uninterrupted comparison."""
    words = ["--models", f"a={trained[0]}", f"b={trained[1]}", "--data-dir", files]
    assert start_evals(*words, "--out", tmp_path / "uninterrupted").communicate()[0].startswith("| Model |")
    out = tmp_path / "killed"

    def size() -> int:
        return sum(p.stat().st_size for p in out.rglob("*.jsonl"))

    for _ in range(3):
        before, running = size(), start_evals(*words, "--out", out)
        while size() == before and running.poll() is None:
            time.sleep(0.01)
        running.kill()
        running.communicate()
        assert running.returncode == -signal.SIGKILL and not (out / "table.md").exists()
    assert start_evals(*words, "--out", out).communicate()[0].startswith("| Model |")

    def files_of(name: str) -> dict[str, bytes]:
        found = sorted((tmp_path / name).rglob("*"))
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in found if p.is_file()}

    assert files_of("killed") == files_of("uninterrupted")


@pytest.mark.long
def test_lm_eval_command(trained: tuple[Path, Path], files: Path, tmp_path: Path) -> None:
    """`lm_eval --model hero --tasks paper13` gives the same scores as our command."""
    script = [
        "-m",
        "hero_moe.evals.harness",
        "--model",
        "hero",
        "--model_args",
        f"path={trained[0]},device=cpu",
    ]
    script += ["--tasks", "paper13", "--include_path", SUITE, "--confirm_run_unsafe_code"]
    script += ["--gen_kwargs", "max_gen_toks=64", "--output_path", tmp_path / "results"]
    environment = os.environ | OURS | {"HERO_MOE_BENCH_DATA": str(files)}
    done = subprocess.run(
        [sys.executable, *map(str, script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "results").rglob("results_*.json")
    found = json.loads(file.read_text())["results"]
    words = ["--models", f"m={trained[0]}", "--data-dir", files, "--out", tmp_path / "ours"]
    assert start_evals(*words, "--device", "cpu").communicate()[0]
    ours = json.loads((tmp_path / "ours" / "results.json").read_text())["models"]["m"]["scores"]
    suite = Suite(files)
    for key, benchmark in BENCHMARKS.items():
        theirs = found[suite.name(benchmark)][benchmark.metric]
        assert ours[key]["score"] == pytest.approx(100 * theirs, abs=1e-9), key
