"""Synthetic run folders in the format of `hero train` with realistic curves, and a small corpus, tokenized by
the program, for the tests that train."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from chat_runs import client_of, trained_on_chats
from data_files import train_bpe
from hero_moe.evals import sandbox
from program import HERO, run_hero, training
from serving import Server, serving

if TYPE_CHECKING:
    import openai

# Set before torch or transformers is imported: no downloads, and separate caches for model folder code and
# torch.compile. A cache filled with a different forced instruction set has crashed a later run.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
CACHES = tempfile.mkdtemp(prefix="hero-moe-caches-")
os.environ |= {"HF_MODULES_CACHE": f"{CACHES}/modules", "TORCHINDUCTOR_CACHE_DIR": f"{CACHES}/inductor"}
atexit.register(shutil.rmtree, CACHES, ignore_errors=True)

# Spin-waiting threads slow down a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True)
def empty_compiler_cache() -> Iterator[None]:
    """torch.compile compiles a function anew for each of its first eight uses with other properties, and fails on a
    ninth: tests in one process must not share them."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture(scope="module")
def one_thread() -> None:
    """PyTorch uses one thread, as the program in these tests: bit-identical sums."""
    import torch

    torch.set_num_threads(1)


MakeRun = Callable[..., Path]
LAYERS, EXPERTS, CHOSEN, TOKENS_PER_STEP = 6, 16, 2, 2048


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many random cases every property test drew, rejected and found wrong."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "cases":
                    terminalreporter.write_line(f"{report.nodeid}: {value}")


def config_text(kind: str, window: int | None, seed: int) -> str:
    """The config.toml of a run folder, abridged."""
    width = "" if window is None else f"window = {window}\n"
    return (
        f'[model]\nmodel_type = "qwen3_moe"\nhidden_size = 256\nnum_experts = {EXPERTS}\n'
        f"num_experts_per_tok = {CHOSEN}\nnum_hidden_layers = {LAYERS}\n\n"
        f'[router]\nkind = "{kind}"\n{width}scale = true\neps = 1e-6\n\n'
        f'[train]\nsteps = 600\nseed = {seed}\ndtype = "bf16"\n\n[optim]\nlr = 1e-3\nbetas = [0.9, 0.95]\n'
    )


def metrics_record(
    step: int, loss: float, noise: np.random.Generator, kind: str, progress: float
) -> dict[str, Any]:
    """One line of `metrics.jsonl`; `progress` runs from 0 to 1."""
    hero = kind == "hero"
    busiest = (0.18 if hero else 0.24) + 0.3 * np.exp(-12 * progress) + 0.01 * noise.standard_normal(LAYERS)
    depth = np.arange(LAYERS)
    speed = 4000 * (0.97 if hero else 1.0) * (1 + 0.03 * noise.standard_normal()) * (0.4 if step < 4 else 1)

    def seen(values: np.ndarray) -> list[float | None]:
        return [None, *values[1:].round(5).tolist()] if hero else [None] * LAYERS

    return {
        "step": step,
        "tokens": step * TOKENS_PER_STEP,
        "loss": loss + 0.01,
        "lm_loss": loss,
        "aux_losses": {"balance": 0.01, "z": 0.0, "coupling": 0.0},
        "lr": 1e-3 * (1 - progress),
        "grad_norm": 1.2,
        "skipped": 0,
        "step_ms": 1e3 * TOKENS_PER_STEP / speed,
        "tokens_per_second": speed,
        "mfu": speed / 13000,
        "peak_memory_mib": 2100.0 + 30 * hero,
        "max_expert_share": float(busiest.max()),
        "layers": {
            "max_expert_share": busiest.round(5).tolist(),
            "max_over_mean": (busiest * EXPERTS / CHOSEN).round(5).tolist(),
            "entropy": (2.5 - 0.6 * progress - 0.03 * depth + 0.01 * noise.standard_normal(LAYERS))
            .round(5)
            .tolist(),
            "dropped": [0.0] * LAYERS,
            "rms_hidden": (1 + 0.1 * depth).tolist(),
            "rms_history": seen(0.11 + 0.005 * depth),
            "rho": seen(8 + depth * (1 + 0.3 * progress)),
            "history_variance_share": seen(0.1 + 0.06 * depth * progress),
        },
    }


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A function that writes a run folder under `tmp_path` and returns it; see `write_run`."""

    def make(name: str, **options: Any) -> Path:
        return write_run(tmp_path / name, **options)

    return make


def write_run(
    path: Path,
    *,
    kind: str = "baseline",
    window: int | None = None,
    steps: int = 60,
    lower: float = 0.0,
    seed: int = 1,
    jitter: float = 0.0,
    snapshots: bool = True,
    evaluation: bool = True,
) -> Path:
    """Writes a run folder. At every step the loss is `lower` below that of the same seed with `lower = 0`,
    plus noise with standard deviation `jitter`."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config_text(kind, window, seed))
    data, noise = np.random.default_rng(seed), np.random.default_rng([seed, len(path.name)])
    with (path / "metrics.jsonl").open("w") as out:
        for step in range(1, steps + 1):
            loss = 3.2 + 5.5 * np.exp(-step / 60) + 40 / (step + 40) + 0.08 * data.standard_normal() - lower
            loss += jitter * noise.standard_normal()
            out.write(json.dumps(metrics_record(step, float(loss), noise, kind, step / steps)) + "\n")
    if snapshots:
        concentration = 8.0 if kind == "hero" else 3.0
        with (path / "routing.jsonl").open("w") as out:
            for step in range(min(20, steps), steps + 1, 20):
                share = noise.dirichlet([concentration] * EXPERTS, LAYERS) * CHOSEN
                out.write(json.dumps({"step": step, "expert_share": share.round(6).tolist()}) + "\n")
    if evaluation:
        entries = [
            {
                "name": name,
                "tokens": 123456,
                "loss": 3.3 + extra - lower,
                "perplexity": float(np.exp(3.3 + extra - lower)),
            }
            for name, extra in (("python-valid", 0.0), ("docs-valid", 0.4))
        ]
        (path / "eval.json").write_text(json.dumps({"step": steps, "datasets": entries}))
    return path


def edit_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Applies `change` to the lines of a text file."""
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def python_text(rng: random.Random) -> str:
    words = "index total items count name value result left right node".split()
    return "".join(
        f"def {rng.choice(words)}_{rng.randint(0, 9)}({rng.choice(words)}):\n"
        f"\treturn {rng.choice(words)}  + {rng.randint(0, 99)}\n\n"
        for _ in range(25)
    )


def chinese_text(rng: random.Random) -> str:
    characters = "的一是不了在有人这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可"
    return "".join(rng.choice(characters) + ("。" if rng.random() < 0.1 else "") for _ in range(250)) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Python-like files, Chinese files and JSON lines of both, 60 documents."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for i in range(20):
        (folder / f"{i:02d}.py").write_text(python_text(rng))
        (folder / f"{i:02d}.txt").write_text(chinese_text(rng))
    with (folder / "more.jsonl").open("w") as out:
        for i in range(20):
            text = python_text(rng) if i % 2 else chinese_text(rng)
            out.write(json.dumps({"text": text}, ensure_ascii=i % 3 == 0) + "\n")
    return folder


@pytest.fixture(scope="session")
def data(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefix of token files of the corpus: 500 pieces, a tenth of the documents for validation."""
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    model = prefix.with_name("pieces.model")
    run_hero("data", "tokenizer", "--input", corpus, "--vocab-size", 500, "--out", model, "--workers", 1)
    run_hero("data", "tokenize", "--input", corpus, "--tokenizer", model, "--out", prefix,
        "--valid-fraction", 0.1, "--workers", 1)  # fmt: skip
    return prefix


@pytest.fixture(scope="session")
def trained_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a HERO model; tests modify only copies."""
    run = tmp_path_factory.mktemp("trained") / "run"
    run_hero(*training(run, data, HERO | {"train.steps": 2}))
    return run


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of a HERO model with checkpoints at 2, 4 and 6; tests modify only copies."""
    run = tmp_path_factory.mktemp("finished") / "run"
    run_hero(*training(run, data, HERO | {"checkpoint.every": 2}))
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of `finished`."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="session")
def chat_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on conversations with the template chatml; tests modify only copies."""
    folder = tmp_path_factory.mktemp("chat")
    return trained_on_chats(folder, train_bpe(folder / "bpe"), "chatml")


@pytest.fixture(scope="module")
def chat_server(chat_run: Path) -> Iterator[Server]:
    with serving(chat_run) as server:
        yield server


@pytest.fixture(scope="module")
def chat_client(chat_server: Server) -> openai.OpenAI:
    return client_of(chat_server)


@pytest.fixture(scope="module")
def programs() -> Iterator[None]:
    """Allows HumanEval programs to run, with bubblewrap if it works."""
    with pytest.MonkeyPatch.context() as patch:
        if sandbox._probe():
            patch.setenv(sandbox.UNSAFE_VARIABLE, "1")
        yield
