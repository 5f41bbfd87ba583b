"""hero_moe.track: with a tracker that records calls, and with the real packages where they are installed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hero_moe.report.json_lines import InputError
from hero_moe.track import __main__
from hero_moe.track.records import flatten
from hero_moe.track.tracking import TrackedRun, follow

ROOT = Path(__file__).resolve().parents[3]


def line(step: int, **values: Any) -> str:
    record = {
        "step": step,
        "tokens": 128 * step,
        "loss": 5 - step / 100,
        "aux_losses": {"balance": 1.5, "z": None},
        "layers": {"rho": [None, 0.5 + step], "dropped": [0, 1]},
    }
    return json.dumps(record | values) + "\n"


def lines(first: int, last: int) -> str:
    return "".join(map(line, range(first, last + 1)))


def write_run(folder: Path, text: str, steps: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f'[router]\nkind = "hero"\n[train]\nsteps = {steps}\n')
    (folder / "metrics.jsonl").write_text(text)
    return folder


class Recorder:
    """Keeps runs by id. `repeats`: the tracker stores configuration changes."""

    def __init__(self, stored: int | None = None, updates: bool = True) -> None:
        self.steps: list[int] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.config: dict[str, Any] = {}
        self.opened: list[tuple[str, str, str]] = []
        self.finished = 0
        self._stored, self._updates = stored, updates

    def open(self, folder: Path, project: str, name: str, id: str, config: dict[str, Any]) -> str:
        self.opened.append((project, name, id))
        self.config |= config
        return id or "id-1"

    def last_step(self) -> int | None:
        return self._stored

    def send(self, step: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)
        self.metrics[step] = metrics

    def update_config(self, changed: dict[str, Any]) -> bool:
        if self._updates:
            self.config |= changed
        return self._updates

    def finish(self) -> None:
        self.finished += 1


def tracked(run: Path, recorder: Recorder, **options: Any) -> TrackedRun:
    return TrackedRun(run, "recorder", options.get("project"), options.get("name"), lambda: recorder)


def test_names_of_metrics() -> None:
    record = json.loads(line(3, norms={"grad_norm": {"head": 2, "w_r": [None, 0.25]}}, valid={"loss": 4.5}))
    assert flatten(record) == {
        "tokens": 384,
        "loss": 4.97,
        "aux_losses/balance": 1.5,
        "layer_2/rho": 3.5,
        "layer_1/dropped": 0,
        "layer_2/dropped": 1,
        "norms/grad_norm/head": 2,
        "norms/grad_norm/w_r/1": 0.25,
        "valid/loss": 4.5,
    }


def test_follows_until_the_run_has_finished(tmp_path: Path) -> None:
    run, recorder = tmp_path / "mine", Recorder()
    whole = lines(1, 8)
    cuts = [0, 10, len(lines(1, 3)) + 20, len(lines(1, 7)), len(whole)]
    polls = iter(cuts)

    def write_more(_: float) -> None:
        write_run(run, whole[: next(polls)])

    follow([tracked(run, recorder)], once=False, sleep=write_more)
    assert recorder.steps == list(range(1, 9)) and recorder.finished == 1
    assert next(polls, None) is None
    assert recorder.opened == [("hero-moe", "mine", "")]
    assert recorder.config == {"router.kind": "hero", "train.steps": 8}
    assert recorder.metrics[8]["layer_2/rho"] == 8.5


def test_resumed_run_sends_no_step_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, recorder = write_run(tmp_path / "run", lines(1, 6)), Recorder()
    contents = iter([lines(1, 4), lines(1, 5), lines(1, 8)])
    follow(
        [tracked(run, recorder)],
        once=False,
        sleep=lambda _: (run / "metrics.jsonl").write_text(next(contents)) and None,
    )
    assert recorder.steps == list(range(1, 9))
    error = capsys.readouterr().err
    assert error.count("repeats steps up to 6, as after a resume; recorder keeps the values") == 1


def test_run_resumed_between_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, recorder = write_run(tmp_path / "run", lines(1, 6)), Recorder()
    follow([tracked(run, recorder)], once=True)
    write_run(run, lines(1, 7))  # the same values in steps 5 and 6: no resume
    follow([tracked(run, recorder)], once=True)
    assert capsys.readouterr().err == ""
    repeated = "".join(line(step, loss=99.0) for step in (6, 7, 8))
    write_run(run, lines(1, 5) + repeated)
    follow([tracked(run, recorder)], once=True)
    assert capsys.readouterr().err.count("repeats steps up to 7, as after a resume") == 1
    assert recorder.steps == list(range(1, 9)) and recorder.metrics[8]["loss"] == 99.0


def test_failed_send_is_repeated_alone(tmp_path: Path) -> None:
    """For a tracker that does not know its last step."""

    class Failing(Recorder):
        def send(self, step: int, metrics: dict[str, float]) -> None:
            if step == 5 and not self.finished:
                raise ConnectionError("no network")
            super().send(step, metrics)

    run, recorder = write_run(tmp_path / "run", lines(1, 6)), Failing()
    with pytest.raises(ConnectionError):
        follow([tracked(run, recorder)], once=True)
    follow([tracked(run, recorder)], once=True)
    assert recorder.steps == list(range(1, 7)) and recorder.finished == 2


def test_stops_between_two_steps(tmp_path: Path) -> None:
    run, recorder = write_run(tmp_path / "run", lines(1, 8)), Recorder()
    follow([tracked(run, recorder)], once=False, stopped=lambda: len(recorder.steps) >= 3)
    assert recorder.steps == [1, 2, 3]
    follow([tracked(run, recorder)], once=True)
    assert recorder.steps == list(range(1, 9))


def test_rewritten_file_of_at_least_the_same_size(tmp_path: Path) -> None:
    run, recorder = write_run(tmp_path / "run", lines(1, 4)), Recorder()
    replaced = "".join(line(step, loss=1.25) for step in range(1, 9))
    follow([tracked(run, recorder)], once=False, sleep=lambda _: write_run(run, replaced) and None)
    assert recorder.steps == list(range(1, 9)) and recorder.metrics[5]["loss"] == 1.25


def test_restart_continues(tmp_path: Path) -> None:
    run, first, second = write_run(tmp_path / "run", lines(1, 3)), Recorder(), Recorder()
    follow([tracked(run, first, project="p", name="n")], once=True)
    state = json.loads((run / "track-recorder.json").read_text())
    assert (state["id"], state["step"], state["project"], state["name"]) == ("id-1", 3, "p", "n")
    write_run(run, lines(1, 5), steps=9)
    follow([tracked(run, second)], once=True)
    assert second.opened == [("p", "n", "id-1")] and second.steps == [4, 5]
    assert second.config["train.steps"] == 9
    with pytest.raises(InputError, match="--project: found q, expected p"):
        tracked(run, Recorder(), project="q")


def test_restart_trusts_the_tracker(tmp_path: Path) -> None:
    """A killed process may have sent more or less than it recorded."""
    run = write_run(tmp_path / "run", lines(1, 6))
    follow([tracked(run, Recorder())], once=True)
    for stored, sent in ((4, [5, 6]), (6, [])):
        recorder = Recorder(stored=stored)
        follow([tracked(run, recorder)], once=True)
        assert recorder.steps == sent


def test_default_name_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It contains the parent folder if another run has the same name."""
    recorder = Recorder()
    monkeypatch.setattr(__main__, "make_backend", lambda *_: recorder)
    first, second = (write_run(tmp_path / seed / "hero", lines(1, 8)) for seed in ("one", "two"))
    assert __main__.main([str(first), "--to", "wandb", "--once"]) == 0
    assert __main__.main([str(first), str(second), "--to", "wandb", "--once"]) == 0
    assert [name for _, name, _ in recorder.opened] == ["hero", "hero", "two-hero"]
    assert __main__.main([str(first), "--to", "wandb", "--once", "--name", "other"]) == 2


def test_damaged_lines_are_skipped_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = line(1) + "{broken\n" + line(2) + '{"loss": 3}\n[1]\n' + line(3) + '{"step": 4'
    run, recorder = write_run(tmp_path / "run", text), Recorder()
    follow([tracked(run, recorder)], once=True)
    assert recorder.steps == [1, 2, 3]
    assert capsys.readouterr().err == f"track: {run}/metrics.jsonl:2: damaged, skipped, and 2 more lines\n"


def test_changed_options_that_the_tracker_cannot_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, recorder = write_run(tmp_path / "run", lines(1, 8)), Recorder(updates=False)
    follow([tracked(run, recorder)], once=True)
    write_run(run, lines(1, 9), steps=9)
    follow([tracked(run, recorder)], once=True)
    assert "changed options: train.steps; recorder keeps" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"id": 3}', '{"project": "p", "name": "n", "id": "", "step": 1}']
)
def test_invalid_state(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", lines(1, 2))
    (run / "track-recorder.json").write_text(text)
    with pytest.raises(InputError, match=r"track-recorder.json: invalid .*remove it"):
        tracked(run, Recorder())


def command(*words: Any, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hero_moe.track", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_missing_package(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines(1, 2))
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "wandb.py").write_text("raise ModuleNotFoundError(name='wandb')\n")
    path = f"{tmp_path / 'hidden'}:{ROOT / 'python'}"
    result = command(run, "--to", "wandb", "--once", PYTHONPATH=path)
    assert (result.returncode, result.stderr) == (
        2,
        "track: found no module wandb, expected it installed: pip install wandb\n",
    )


@pytest.mark.parametrize(
    "words, found",
    [
        (["none", "--to", "wandb", "--once"], "none: found no metrics.jsonl"),
        (["no/such", "--to", "wandb"], "no/such: found no folder"),
        (["run/config.toml", "--to", "wandb"], "found no folder"),
        (["run", "run2", "--to", "wandb", "--name", "x"], "--name: found with 2 runs"),
        (["run", "--to", "mlflow", "--offline"], "--offline: found with --to mlflow"),
        (["run", "--to", "wandb", "--project", ""], "--project: found an empty text"),
        (["run", "--to", "neptune"], "invalid choice"),
        (["run"], "--to"),
    ],
)
def test_wrong_command_lines(tmp_path: Path, words: list[str], found: str) -> None:
    write_run(tmp_path / "run", lines(1, 2))
    paths = [str(tmp_path / w) if not w.startswith("-") and i < 2 and words[i - 1] != "--to" else w
             for i, w in enumerate(words)]  # fmt: skip
    result = command(*paths)
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert found in result.stderr


def stored_by_mlflow(store: str, experiment: str) -> tuple[dict[str, str], dict[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    history = client.get_metric_history(run.info.run_id, "layer_2/rho")
    assert len(history) == len({metric.step for metric in history})
    assert run.info.status == "FINISHED"
    return run.data.params, {metric.step: metric.value for metric in history}


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = write_run(tmp_path / "run", lines(1, 3))
    for last in (3, 8):
        write_run(run, lines(1, last))
        result = command(run, "--to", "mlflow", "--once", "--project", "p", MLFLOW_TRACKING_URI=store)
        assert result.returncode == 0, result.stderr
    params, values = stored_by_mlflow(store, "p")
    assert params == {"router.kind": "hero", "train.steps": "8"}
    assert values == {step: 0.5 + step for step in range(1, 9)}


def test_trackio(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    variables = {"TRACKIO_DIR": str(tmp_path / "store")}
    run, other = (write_run(tmp_path / name, lines(1, 3)) for name in ("run", "other"))
    for last in (3, 8):
        write_run(run, lines(1, last))
        result = command(run, other, "--to", "trackio", "--once", "--project", "p", **variables)
        assert result.returncode == 0, result.stderr
    database = sqlite3.connect(tmp_path / "store" / "p.db")
    rows = database.execute("select run_name, step, metrics from metrics order by run_name, step").fetchall()
    assert [row[:2] for row in rows] == [("other", s) for s in (1, 2, 3)] + [("run", s) for s in range(1, 9)]
    assert json.loads(rows[-1][2])["layer_2/rho"] == 8.5
    configs = database.execute("select config from configs where run_name = 'run'").fetchall()
    assert len(configs) == 1 and json.loads(configs[0][0])["router.kind"] == "hero"


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB, fragments with CRC, length and type."""
    block, header, at, parts = 1 << 15, 7, 7, b""
    while at + header <= len(data):
        if block - at % block < header:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # full, last
            yield parts
            parts = b""


def stored_by_wandb(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Configuration and history of the offline runs below a run folder."""
    from wandb.proto import wandb_internal_pb2

    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.run.config.update:
                config[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
            if record.history.item:
                history.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
    return config, history


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run = write_run(tmp_path / "run", lines(1, 3))
    for last in (3, 8):
        write_run(run, lines(1, last))
        result = command(run, "--to", "wandb", "--once", "--offline")
        assert result.returncode == 0, result.stderr
    config, history = stored_by_wandb(run)
    assert config["router.kind"] == "hero" and config["train.steps"] == 8
    assert [item["_step"] for item in history] == list(range(1, 9))
    assert [item["layer_2/rho"] for item in history] == [0.5 + step for step in range(1, 9)]


def test_wandb_stops_on_a_signal_and_continues(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    words = [sys.executable, "-m", "hero_moe.track", str(run), "--to", "wandb", "--offline"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    write_run(run, lines(1, 4))
    deadline = time.monotonic() + 60
    state = run / "track-wandb.json"
    while not state.exists() or json.loads(state.read_text())["step"] < 4:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT and "step 4 in wandb" in error
    write_run(run, lines(1, 8))
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert [item["_step"] for item in stored_by_wandb(run)[1]] == list(range(1, 9))
