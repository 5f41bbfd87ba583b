"""The projects that the benchmarks compare with compute what ours does. Skipped where they are not installed
(`make peers`)."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

import hero_moe
from program import CONFIGS, ROOT

sys.path.append(str(ROOT / "bench"))
from generate_speed import export  # noqa: E402
from peers import training  # noqa: E402
from peers.process import PEERS, Peer, installed, missing, python  # noqa: E402
from peers.training import (  # noqa: E402
    MIN_RELATIVE_SPEED,
    SETTINGS,
    SLOW_PROJECT,
    competitive_settings,
    possible,
)
from timed_training import Optimizer  # noqa: E402

PROMPTS = [[random.Random(row).randrange(8192) for _ in range(32)] for row in range(16)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("peers"), "small-qwen3", "baseline")


# In fp32 the same ids. The model is nearly random, with many near ties: rounding to 8 or 16 bits may decide those, so
# there the logit of another id is within `tie` of the largest, in standard deviations of the logits.
@pytest.mark.parametrize(
    ("name", "words", "tie"),
    [
        ("llama", ["fp32"], 0.0),
        ("llama", ["bf16"], 0.1),
        ("llama", ["q8_0"], 0.1),
        ("vllm", ["fp32", "eager"], 0.0),
        ("vllm", ["bf16", "eager"], 0.1),
    ],
)
def test_first_ids_are_ours(folder: Path, name: str, words: list[str], tie: float) -> None:
    if not installed(name):
        pytest.skip(f"scripts/install_peers.sh {name}")
    logits = hero_moe.load(folder, dtype="fp32", device="cpu").logits(PROMPTS)[:, -1]
    with closing(Peer(name, folder, *words)) as peer:
        peer.wait_until_loaded()
        theirs = peer.generate(PROMPTS, 1)[1]
        assert peer.generate(PROMPTS, 1)[1] == theirs
    below = logits.amax(1) - logits.gather(1, torch.tensor(theirs)).squeeze(1)
    assert (below / logits.std(1)).max() <= tie


@pytest.mark.parametrize("config", ["small-qwen3", "small-deepseek"])
def test_torchtitan_has_our_model(config: str) -> None:
    """As many parameters, and the loss of a model that predicts nothing."""
    if not installed("torchtitan"):
        pytest.skip("scripts/install_peers.sh torchtitan")
    words = ["--config", CONFIGS / f"{config}.toml", "--batch", 1, "--sequence", 32, "--steps", 1]
    found = {}
    for project, script in (("torchtitan", "torchtitan_train.py"), ("transformers", "hf_train.py")):
        command = [python(project), ROOT / "bench" / script, *words, "--dtype", "fp32"]
        done = subprocess.run([str(w) for w in command], check=True, capture_output=True, text=True)
        found[project] = json.loads(done.stdout)
    assert found["torchtitan"]["parameters"] == found["transformers"]["parameters"]
    assert found["torchtitan"]["loss"] == pytest.approx(9.5, abs=0.5)


def test_small_updates_are_kept_with_fp32_copies() -> None:
    """Steps of 1e-3 are less than half of bf16's spacing below 1."""
    for fp32_copies, expected in ((True, 1 - 10 * 1.1e-3), (False, 1.0)):
        weight = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
        optimizer = Optimizer([weight], fp32_copies)
        for _ in range(10):
            weight.sum().backward()
            optimizer.step()
            assert weight.grad is None
        assert weight[0].item() == pytest.approx(expected, abs=2**-9)


def test_missing_projects_are_named() -> None:
    for name, project in PEERS.items():
        lines = missing(name)
        assert lines == [] if installed(name) else [project in line for line in lines] == [True]
    chosen, reasons = possible(SETTINGS)
    assert possible(SETTINGS, on_gpu=True)[0] == [
        s for s in SETTINGS if installed(s.project) or s.project == "transformers"
    ]
    projects = {setting.project for setting in chosen}
    assert "transformers" in projects
    assert ("torchtitan" in projects) != any("torchtitan" in reason for reason in reasons)


@pytest.mark.parametrize("minimum", [MIN_RELATIVE_SPEED, 1.0])
def test_settings_close_to_the_fastest_are_measured(monkeypatch: pytest.MonkeyPatch, minimum: float) -> None:
    """Random rates and failures: every setting is measured or has a line that says why not."""
    monkeypatch.setattr(training, "possible", lambda settings, on_gpu: (list(settings), []))
    settings = {tuple(s.command("small-qwen3", 2, ())): s for s in SETTINGS}
    for seed in range(100):
        generator = random.Random(seed)
        run: dict[str, float] = {}

        def trial(
            words: list[str], generator: random.Random = generator, run: dict[str, float] = run
        ) -> float | str:
            if generator.random() < 0.2:
                return "exit status 1"
            run[settings[tuple(words)].name] = rate = 10 ** generator.uniform(1, 3)
            return rate

        monkeypatch.setattr(training, "trial_run", trial)
        candidates, lines = competitive_settings("small-qwen3", SETTINGS, 2, min_relative_speed=minimum)
        for setting in SETTINGS:
            said = [
                line for line in lines if re.match(rf"{setting.name}(:| did not run:| was not run:)", line)
            ]
            assert len(said) == int(setting.name not in candidates), seed
        overall = max(run.values(), default=0.0)
        for project in ("transformers", "torchtitan"):
            own = {name: rate for name, rate in run.items() if name.startswith(project)}
            fastest = max(own.values(), default=0.0)
            few = minimum == 1 and fastest < SLOW_PROJECT * overall
            assert {name for name in candidates if name.startswith(project)} == {
                name for name, rate in own.items() if not few and rate >= minimum * fastest
            }, seed
