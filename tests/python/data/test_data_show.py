"""hero data show: samples, tokens and epochs by phase and source, against a count of the quota method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from program import (
    assert_exit_2,
    checkpoint,
    hero,
    metrics,
    run_hero,
    toml_value,
    training,
    write_megatron,
)
from sample_order import quota_method

SEQUENCE, BATCH = 16, 4
SAMPLES = {"web": 11, "books": 7, "code": 5}
MODEL: dict[str, Any] = {
    "model.vocab_size": 512,
    "train.steps": 9,
    "train.sequence": SEQUENCE,
    "train.global_batch": BATCH,
    "train.micro_batch": BATCH,
    "checkpoint.every": 2,
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, samples in SAMPLES.items():
        write_megatron(folder / f"{name}-train", [[1 + i % 500] for i in range(samples * SEQUENCE + 3)])
    return folder


Phases = list[tuple[int, dict[str, int]]]
THREE: Phases = [(3, {"web": 1}), (6, {"books": 3, "web": 4}), (9, {"code": 1, "web": 2, "books": 2})]


def expected_counts(phases: Phases, steps: int) -> list[dict[str, int]]:
    """Samples of each source in each phase up to this step."""
    out, begin = [], 0
    for end, weights in phases:
        order = quota_method(weights.values(), max(0, min(end, steps) - begin) * BATCH)
        out.append({name: order.count(k) for k, name in enumerate(weights)})
        begin = end
    return out


def as_option(sources: Path, phases: Phases) -> list[dict[str, Any]]:
    blends = [[f"{weight}:{sources / name}" for name, weight in weights.items()] for _, weights in phases]
    bounds = [{"until_step": end} for end, _ in phases[:-1]] + [{}]
    return [bound | {"blend": blend} for bound, blend in zip(bounds, blends, strict=True)]


def show(*words: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_hero("data", "show", *words, "--json").stdout)
    return found


def check(found: dict[str, Any], sources: Path, phases: Phases, completed: int, steps: int) -> None:
    assert (found["completed_steps"], found["steps"]) == (completed, steps)
    totals: dict[str, dict[str, int]] = {"read": {}, "planned": {}}
    for key, until in (("read", completed), ("planned", steps)):
        want = expected_counts(phases, until)
        assert len(found["phases"]) == len(want)
        for phase, counts in zip(found["phases"], want, strict=True):
            assert [source["prefix"] for source in phase["sources"]] == [
                str(sources / f"{name}-train") for name in counts
            ]
            for source, (name, count) in zip(phase["sources"], counts.items(), strict=True):
                assert source["samples_per_epoch"] == SAMPLES[name]
                assert source[key] == {
                    "samples": count,
                    "tokens": count * SEQUENCE,
                    "epochs": pytest.approx(count / SAMPLES[name]),
                }
                totals[key][name] = totals[key].get(name, 0) + count
        assert sum(totals[key].values()) == until * BATCH
    for source, name in zip(found["sources"], totals["planned"], strict=True):
        assert source["prefix"] == str(sources / f"{name}-train")
        for key in ("read", "planned"):
            assert source[key]["samples"] == totals[key][name]
        assert source["share"] == pytest.approx(totals["planned"][name] / (steps * BATCH))


def test_counts_of_a_run(sources: Path, tmp_path: Path) -> None:
    """Finished, ended early by an earlier checkpoint, without checkpoints, and before it starts."""
    run = tmp_path / "run"
    words = training(run, None, MODEL | {"data.phase": as_option(sources, THREE)})
    check(show("--config", words[2]), sources, THREE, 0, 9)
    run_hero(*words)
    check(show(run), sources, THREE, 9, 9)
    first = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    # A killed run: the steps after its last checkpoint count as read, an incomplete line does not.
    for step in range(6, 10):
        shutil.rmtree(checkpoint(run, step), ignore_errors=True)
    (run / "metrics.jsonl").write_text("".join(first[:5]) + first[5][:40])
    check(show(run), sources, THREE, 5, 9)
    (run / "metrics.jsonl").unlink()
    check(show(run), sources, THREE, 4, 9)
    # The number of tokens is that of the metrics.
    assert json.loads(first[8])["tokens"] == sum(s["planned"]["tokens"] for s in show(run)["sources"])


def test_counts_of_a_blend_and_a_branch(sources: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    blend = [f"1:{sources}/web", f"3:{sources}/code"]
    settings = MODEL | {"train.steps": 6, "optim.schedule": "constant"}
    words = training(run, None, settings, "--data", *blend)
    run_hero(*words)
    check(show(run), sources, [(6, {"web": 1, "code": 3})], 6, 6)
    check(show("--config", words[2], "--data", *blend), sources, [(6, {"web": 1, "code": 3})], 0, 6)
    phases: Phases = [(4, {"web": 1, "code": 3}), (7, {"books": 1})]
    option = f"--data.phase={toml_value(as_option(sources, phases))}"
    run_hero("train", "--branch", f"{run}@4", "--run", other, option, "--train.steps=7")
    assert metrics(other)[0]["step"] == 5
    check(show(other), sources, phases, 7, 7)
    # Before its first checkpoint, the arguments are those of starts.jsonl.
    shutil.rmtree(run / "checkpoints")
    check(show(run), sources, [(6, {"web": 1, "code": 3})], 6, 6)


def test_best_fit_has_other_epochs(sources: Path, tmp_path: Path) -> None:
    write_megatron(tmp_path / "text", [[7] * 10] * 6)
    words = ["--data", tmp_path / "text", "--train.sequence=16", "--train.steps=2", "--train.global_batch=4",
             "--train.micro_batch=4", "--optim.warmup_steps=1"]  # fmt: skip
    for packing, samples in (("concat", 3), ("best_fit", 6)):
        (source,) = show(*words, f"--train.pack={packing}")["sources"]
        assert source["samples_per_epoch"] == samples
        assert source["planned"]["epochs"] == pytest.approx(8 / samples)


def test_table(sources: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, None, MODEL | {"train.steps": 4, "data.phase": as_option(sources, THREE)}))
    lines = run_hero("data", "show", run).stdout.splitlines()
    assert lines[0] == "4 of 4 steps, 256 of 256 tokens"
    assert lines[1].split() == ["read", "so", "far", "after", "step", "4"]
    assert lines[2].split() == [
        *["phase", "steps", "source", "share"],
        *["samples", "tokens", "epochs", "samples", "tokens", "epochs"],
    ]
    assert len({len(line) for line in lines[2:]}) == 1, "columns are aligned"
    # The third phase does not begin.
    assert [line.split()[0] for line in lines[3:]] == ["1", "2", "2", "all", "all", "all"]
    web = f"{sources}/web-train"
    assert lines[3].split() == ["1", "1", "to", "3", web, "100.0%", *["12", "192", "1.09"] * 2]
    assert lines[6].split() == ["all", web, "87.5%", *["14", "224", "1.27"] * 2]
    assert lines[8].split() == ["all", f"{sources}/code-train", "0.0%", *["0", "0", "0.00"] * 2]


def test_errors(sources: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, sources / "web", MODEL | {"train.steps": 2}))
    for words, message in [
        ([tmp_path], f"{tmp_path}: found no config.toml, expected the folder of a run"),
        ([tmp_path / "none"], f"{tmp_path}/none: found no config.toml, expected the folder of a run"),
        ([], "RUN: found nothing, expected a run, or --config and --data"),
        ([run, "--data", "x"], f"RUN: found {run} and options, expected one of them: a run has its own"),
        (["--config", "hero"], "--data: found nothing, expected PREFIX or WEIGHT:PREFIX"),
        (["--data", "x", "--train.stepz=3"], "--train.stepz: unknown key; did you mean train.steps?"),
        (["--data", tmp_path / "x"], f"{tmp_path}/x.idx: cannot be opened"),
    ]:
        assert_exit_2(hero("data", "show", *words), message)
    shutil.rmtree(run / "checkpoints")
    (run / "starts.jsonl").unlink()
    assert_exit_2(hero("data", "show", run), f"{run}/starts.jsonl: not found, expected it or a checkpoint")
