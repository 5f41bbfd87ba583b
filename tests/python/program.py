"""Runs the program `hero` and reads its output files."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fork_server import LIBRARY, ForkServer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HERO_PROGRAM", str(ROOT / "build" / "hero"))
CONFIGS = ROOT / "configs"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}

# A step takes some ten milliseconds on one thread.
SMALL = {
    "model.hidden_size": 64,
    "model.num_hidden_layers": 3,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 2,
    "model.head_dim": 16,
    "model.max_position_embeddings": 128,
    "model.num_experts": 8,
    "model.num_experts_per_tok": 2,
    "model.moe_intermediate_size": 32,
    "train.steps": 6,
    "train.sequence": 64,
    "train.micro_batch": 2,
    "train.global_batch": 2,
    "train.threads": 1,
    "train.device": "cpu",
    "train.routing_every": 2,
    "optim.warmup_steps": 2,
    "checkpoint.every": 0,
    "checkpoint.keep": 0,
}
HERO: dict[str, Any] = {"router.kind": "hero"}
# Long enough to be interrupted midway.
LONG = HERO | {"train.steps": 60, "model.num_hidden_layers": 2}
DEEPSEEK = {
    "model.model_type": "deepseek_v3",
    "model.q_lora_rank": 24,
    "model.kv_lora_rank": 16,
    "model.qk_nope_head_dim": 16,
    "model.qk_rope_head_dim": 8,
    "model.v_head_dim": 16,
    "model.intermediate_size": 96,
    "model.first_k_dense_replace": 1,
    "model.n_shared_experts": 1,
    "model.scoring_func": "sigmoid",
    "router.bias_update_rate": 0.01,
}
# Metrics that may differ between identical runs: time, throughput and memory.
NONDETERMINISTIC_METRICS = ("step_ms", "tokens_per_second", "mfu", "peak_memory_mib")


def toml(settings: dict[str, Any]) -> str:
    """`{"model.hidden_size": 64}` as TOML; dotted keys need no sections."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in settings.items())


def toml_value(value: Any) -> str:
    """A value on one line; dictionaries become inline tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value)


@functools.cache
def _commands() -> set[str]:
    done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE))


@functools.cache
def _fork_server() -> ForkServer | None:
    if "HERO_PROGRAM" in os.environ or not (ROOT / "build" / LIBRARY).exists():
        return None
    return ForkServer(ROOT / "build", ENVIRONMENT | {"OMP_WAIT_POLICY": "passive"})


def fork_server(words: Sequence[Any]) -> ForkServer | None:
    """The server that can run `hero WORDS`: commands in an unchanged environment."""
    if not words or words[0] not in _commands():
        return None
    server = _fork_server()
    return server if server and server.environment == ENVIRONMENT | {"OMP_WAIT_POLICY": "passive"} else None


def hero(
    *words: Any, cwd: Path | None = None, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the program; decodes stdout and stderr strictly as UTF-8 without newline conversion. With additional
    environment variables or options of subprocess.run in a process of its own, otherwise as a fork of one that has
    loaded the libraries."""
    server = None if variables or options else fork_server(words)
    if server:
        done = server.run(words, cwd, timeout=300)
    else:
        done = subprocess.run(
            [PROGRAM, *map(str, words)],
            cwd=cwd,
            env=ENVIRONMENT | (variables or {}),
            capture_output=True,
            timeout=300,
            check=False,
            **options,
        )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_hero(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `hero` and asserts success."""
    result = hero(*words, **options)
    assert result.returncode == 0, f"{result.args} exited with {result.returncode}:\n{result.stderr}"
    return result


def start_hero(*words: Any) -> subprocess.Popen[str]:
    """Starts `hero` without waiting for it; its stderr is a pipe."""
    return subprocess.Popen(
        [PROGRAM, *map(str, words)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Waits until `reached()` is true or the process has ended."""
    give_up = time.monotonic() + 120
    while process.poll() is None and not reached():
        assert time.monotonic() < give_up, "timed out after two minutes"
        time.sleep(0.001)


def configuration_keys() -> dict[str, tuple[str, str, str, str]]:
    """Type, default, help and bounds of every configuration key, in the order of `hero train --help`."""
    text = run_hero("train", "--help").stdout.split("Configuration keys")[1]
    row = r"^  --(\w+\.[\w.]+) +(integers?|float|bool|strings?|tables) +(\S+)\n((?:      .*\n)+)"
    found: dict[str, tuple[str, str, str, str]] = {}
    for key, kind, default, lines in re.findall(row, text, re.MULTILINE):
        help_and_bounds = re.fullmatch(r"(\S.*) \[(.+?)\](?: \(.*\))?", " ".join(lines.split()))
        assert help_and_bounds, f"{key}: {lines}"
        found[key] = (kind, default, *help_and_bounds.groups())
    assert len(found) == len(re.findall(r"^  --", text, re.MULTILINE))
    return found


def assert_exit_2(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Asserts exit status 2 and one line on stderr that holds every part."""
    assert result.returncode == 2, f"{result.args} exited with {result.returncode}:\n{result.stderr}"
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    for part in parts:
        assert part in result.stderr


def training(run: Path, data: Path | None, settings: dict[str, Any], *words: Any) -> list[Any]:
    """The arguments of a training command; writes SMALL with the settings to a file next to the run
    folder."""
    file = run.with_suffix(".toml")
    file.write_text(toml(SMALL | settings))
    return ["train", "--config", file, *(["--data", data] if data else []), "--run", run, *words]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps_logged(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def deterministic_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics without those that depend on time and memory."""
    return [{k: v for k, v in line.items() if k not in NONDETERMINISTIC_METRICS} for line in metrics(run)]


def deterministic_rank_metrics(run: Path) -> list[dict[str, Any]]:
    """The same of several ranks, whose times are in "ranks"."""
    return [{k: v for k, v in line.items() if k != "ranks"} for line in deterministic_metrics(run)]


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoint_names(run: Path) -> list[str]:
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def tensor_bytes(run: Path, step: int) -> dict[str, bytes]:
    """The tensor files of a checkpoint."""
    files = sorted(checkpoint(run, step).glob("*.safetensors"))
    assert [f.name for f in files] == ["model.safetensors", "optimizer.safetensors"]
    return {f.name: f.read_bytes() for f in files}


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def assert_same_outcome(run: Path, other: Path, step: int) -> None:
    """Asserts bit-identical tensors at this step and equal logs."""
    assert tensor_bytes(run, step) == tensor_bytes(other, step)
    assert deterministic_metrics(run) == deterministic_metrics(other)
    assert (run / "routing.jsonl").read_bytes() == (other / "routing.jsonl").read_bytes()
    assert [line["step"] for line in metrics(run)] == list(range(1, step + 1))


def copy_stopped_at(step: int, run: Path, copy: Path) -> Path:
    """A copy of a run as after a crash at `step`, one of its checkpoints: without later ones."""
    shutil.copytree(run, copy)
    for name in checkpoint_names(copy):
        if name > checkpoint(copy, step).name:
            shutil.rmtree(copy / "checkpoints" / name)
    return copy


def resume_copy(whole: Path, copy: Path, *steps: int) -> subprocess.CompletedProcess[str]:
    """Resumes a copy of a run without the checkpoints of these steps."""
    shutil.copytree(whole, copy)
    for step in steps:
        shutil.rmtree(checkpoint(copy, step))
    return run_hero("train", "--run", copy, "--resume")


def assert_resumes_alike(whole: Path, copy: Path, step: int) -> subprocess.CompletedProcess[str]:
    """Resumes a copy of a run without its last checkpoint, that of `step`; asserts that it ends with the same
    bytes."""
    done = resume_copy(whole, copy, step)
    assert_same_outcome(copy, whole, step)
    assert folder_bytes(checkpoint(copy, step)) == folder_bytes(checkpoint(whole, step))
    return done


def valid_losses(run: Path) -> dict[int, float]:
    """Validation losses by step."""
    return {line["step"]: line["valid_loss"] for line in metrics(run) if "valid_loss" in line}


def write_megatron(prefix: Path, documents: list[list[int]], dtype: str = "uint16") -> None:
    """Writes token files in the Megatron-LM format, one sequence per document, without metadata."""
    codes = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}
    lengths = np.array([len(d) for d in documents], "<i4")
    ends = np.cumsum(lengths.astype("<i8")) * np.dtype(dtype).itemsize
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_suffix(".bin").write_bytes(np.concatenate(documents).astype(dtype).tobytes())
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0"
        + np.array([1], "<u8").tobytes()
        + bytes([codes[dtype]])
        + np.array([len(documents), len(documents) + 1], "<u8").tobytes()
        + lengths.tobytes()
        + np.concatenate([[0], ends[:-1]]).astype("<i8").tobytes()
        + np.arange(len(documents) + 1, dtype="<i8").tobytes()
    )
