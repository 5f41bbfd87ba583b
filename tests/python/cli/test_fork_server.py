"""Commands in forks of one process do what they do in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from program import CONFIGS, ENVIRONMENT, PROGRAM, fork_server, hero, training
from ranks import rank_log, run_ranks

COMMANDS = {
    "output": ["cost", "--config", CONFIGS / "small-qwen3.toml"],
    "relative path": ["data", "info", "none"],
    "invalid": ["train", "--model.num_expert=4"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_same_output_and_status(words: list[object], tmp_path: Path) -> None:
    if fork_server(words) is None:
        pytest.skip("no fork server for this program")
    alone = subprocess.run(
        [PROGRAM, *map(str, words)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    fork = hero(*words, cwd=tmp_path)
    assert (fork.returncode, fork.stdout, fork.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_signals_and_timeouts(data: Path, tmp_path: Path) -> None:
    words = training(tmp_path / "run", data, {"train.steps": 100_000})
    if (server := fork_server(words)) is None:
        pytest.skip("no fork server for this program")
    with tempfile.TemporaryFile() as out:
        child = server.start(words, None, out, out, {})
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.01)
        finally:
            child.kill()
        assert child.wait(60) == -signal.SIGKILL


def test_each_rank_has_its_variables(data: Path, tmp_path: Path) -> None:
    words = training(tmp_path / "run", data, {"train.steps": 2, "train.global_batch": 4})
    assert run_ranks(words, 2, tmp_path / "log") == [0, 0], rank_log(tmp_path / "log", 0)
