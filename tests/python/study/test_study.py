"""`hero study` end to end with tiny models: trained variants, identical variants, interruption and resume."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from program import (
    CONFIGS,
    ENVIRONMENT,
    PROGRAM,
    SMALL,
    assert_exit_2,
    assert_same_outcome,
    hero,
    run_hero,
    toml,
)

SETTINGS = SMALL | {"train.steps": 8, "train.seed": 5, "model.num_hidden_layers": 4, "checkpoint.every": 2}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "tiny.toml"
    file.write_text(toml(SETTINGS))
    return file


def words(config: Path, data: Path, out: Path, *more: object) -> list[object]:
    return ["study", config, "--data", data, "--out", out, "--threads", 1, *more]


@pytest.fixture(scope="module")
def study(config: Path, data: Path) -> Path:
    """Baseline, hero, mask1 and mask3 (which has no effect in four layers) with two seeds."""
    out = config.parent / "complete"
    run_hero(*words(config, data, out, "--variants", "baseline,hero,mask1,mask3", "--seeds", 2, "--jobs", 2))
    return out


def test_trains_every_variant_with_every_seed(study: Path) -> None:
    description = json.loads((study / "study.json").read_text())
    assert description["seeds"] == [5, 6] and description["steps"] == 8
    found = {v["name"]: (v["same_as"], v["layers_cut"], v["runs"]) for v in description["variants"]}
    assert found["mask1"] == (None, 2, {"5": "seed-5/mask1", "6": "seed-6/mask1"})
    assert found["mask3"] == ("hero", 0, {})
    assert not (study / "seed-5" / "mask3").exists()
    numbers = json.loads((study / "results.json").read_text())["variants"]
    assert set(numbers) == {"baseline", "hero", "mask1"}
    for seed in ("5", "6"):
        lines = (study / f"seed-{seed}" / "hero" / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["lm_loss"] == numbers["hero"]["final_loss"]["by_seed"][seed]
        evaluation = json.loads((study / f"seed-{seed}" / "hero" / "eval.json").read_text())
        assert evaluation["step"] == 8
        assert numbers["hero"]["held_out"]["by_seed"][seed] == pytest.approx(
            evaluation["datasets"][0]["loss"]
        )


def test_costs_match_hero_cost(study: Path, config: Path) -> None:
    description = json.loads((study / "study.json").read_text())
    cost = json.loads(run_hero("cost", "--config", config, "--config", CONFIGS / "hero.toml", "--json",
                          "--model.vocab_size=512").stdout)  # fmt: skip
    for variant, column in (("baseline", "baseline"), ("hero", "hero")):
        found = next(v["cost"] for v in description["variants"] if v["name"] == variant)
        assert found["parameters"] == cost["parameters"]["total"][column]
        assert found["step_flops_exact"] == cost["operations of a step, exact"]["total"][column]
        assert (
            found["router_step_flops_paper"] == cost["router operations of a step"]["paper's count"][column]
        )


def test_repeating_a_finished_study_trains_nothing(study: Path, config: Path, data: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in study.glob("seed-*/*/metrics.jsonl")}
    run_hero(*words(config, data, study, "--variants", "baseline,hero,mask1,mask3", "--seeds", 2))
    assert times == {path: path.stat().st_mtime_ns for path in study.glob("seed-*/*/metrics.jsonl")}


def test_interrupted_study_resumes_to_the_same_result(study: Path, config: Path, data: Path) -> None:
    out = config.parent / "stopped"
    command = words(config, data, out, "--variants", "baseline,hero", "--seeds", 1)
    process = subprocess.Popen(
        [PROGRAM, *map(str, command)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    metrics = out / "seed-5" / "baseline" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes().count(b"\n")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM, error
    assert "the same command resumes" in error and not (out / "study.json").exists()
    run_hero(*command)
    for variant in ("baseline", "hero"):
        assert_same_outcome(out / "seed-5" / variant, study / "seed-5" / variant, 8)


def test_a_variant_added_before_an_identical_one(
    study: Path, config: Path, data: Path, tmp_path: Path
) -> None:
    """The finished runs are kept, though the new variant comes first."""
    out = Path(shutil.copytree(study, tmp_path / "study"))
    run_hero(*words(config, data, out, "--variants", "baseline,mask3,hero", "--seeds", 2))
    description = json.loads((out / "study.json").read_text())
    found = {v["name"]: (v["same_as"], v["runs"]) for v in description["variants"]}
    assert found["mask3"] == ("hero", {})
    assert found["hero"] == (None, {"5": "seed-5/hero", "6": "seed-6/hero"})
    assert not (out / "seed-5" / "mask3").exists()


def test_a_failing_run_ends_the_study_with_its_error(config: Path, data: Path, tmp_path: Path) -> None:
    result = hero(
        *words(
            config, data, tmp_path / "s", "--variants", "baseline", "--optim.lr=1e30", "--optim.clip_norm=0"
        )
    )
    assert result.returncode == 1
    assert "seed-5/baseline.log: hero: " in result.stderr and "not finite" in result.stderr.replace(
        "nan", "not finite"
    )


def test_rejects_invalid_input(study: Path, config: Path, data: Path, tmp_path: Path) -> None:
    assert_exit_2(hero(*words(config, data, tmp_path / "s", "--variants", "baseline,nothing")),
            "--variants: nothing: no such file", "expected a TOML file or one of these names: ", " no-scaling,")  # fmt: skip
    assert_exit_2(hero(*words(config, data, tmp_path / "s", "--variants", "hero,hero")), "found hero twice")
    assert_exit_2(hero(*words(config, data, study, "--variants", "baseline", "--optim.lr=0.5")),
            "seed-5/baseline/config.toml: the run was started with different settings (optim.lr: 0.001 -> 0.5)")  # fmt: skip
    assert_exit_2(
        hero(*words(config, data, study, "--variants", "baseline", "--train.stepz=3")), "train.stepz"
    )
    assert_exit_2(hero(*words(config, data, tmp_path / "s", "--variants", "baseline", "--report-only")),
            "found no finished run, expected one")  # fmt: skip
    assert not (tmp_path / "s").exists()


def test_checks_all_data_before_training(config: Path, data: Path, tmp_path: Path) -> None:
    variants = ["--variants", "baseline,hero"]
    overlay = tmp_path / "other.toml"
    overlay.write_text('router.kind = "hero"\n[eval]\nevery = 4\ndata = ["none"]\n')
    masked = ["--variants", "baseline", "--train.loss_mask=true"]
    for where, more, found in [
        (tmp_path / "none", variants, f"{tmp_path}/none.idx: cannot be opened"),
        (data, [*variants, "--held-out", tmp_path / "none"], f"{tmp_path}/none.idx: cannot be read"),
        (data, ["--variants", f"baseline,{overlay}"], "eval.data: none.idx: cannot be opened"),
        (data, masked, "-mask.idx"),
    ]:
        assert_exit_2(hero(*words(config, where, tmp_path / "s", *more)), found)
    assert not (tmp_path / "s").exists()


def test_rejects_variants_with_other_batches(config: Path, data: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "more.toml"
    for key, value in (("steps", 9), ("global_batch", 16), ("sequence", 8), ("seed", 9)):
        overlay.write_text(f'router.kind = "hero"\n[train]\n{key} = {value}\n')
        assert_exit_2(
            hero(*words(config, data, tmp_path / "s", "--variants", f"baseline,{overlay}")),
            f"--variants: more differs from baseline (train.{key}: ",
            f" -> {value}); expected the same value in all variants of a study",
        )
    assert not (tmp_path / "s").exists()


def copy_tokens(data: Path, folder: Path) -> Path:
    """Training and validation files of the same content."""
    folder.mkdir()
    for file in data.parent.glob(f"{data.name}*"):
        shutil.copy(file, folder)
    return folder / data.name


def test_finished_runs_keep_their_data(config: Path, data: Path, tmp_path: Path) -> None:
    """Finished runs are not compared with those of other data, and are evaluated again on other held-out
    data."""
    out, own = tmp_path / "s", copy_tokens(data, tmp_path / "own")
    one = ["--variants", "baseline", "--train.steps=2"]
    run_hero(*words(config, own, out, *one))
    file = out / "seed-5" / "baseline" / "eval.json"
    first = json.loads(file.read_text())
    assert {path.rsplit(".", 1)[1] for path in first["datasets"][0]["token_files"]} == {"bin", "idx"}
    run_hero(*words(config, own, out, *one))
    assert json.loads(file.read_text()) == first

    held_out = ["--held-out", f"{own}-train"]
    run_hero(*words(config, own, out, "--variants", "baseline,hero", "--train.steps=2", *held_out))
    evaluated = [
        json.loads((out / "seed-5" / name / "eval.json").read_text())["datasets"]
        for name in ("baseline", "hero")
    ]
    assert (
        [one["name"] for one in evaluated[0]]
        == [one["name"] for one in evaluated[1]]
        == [f"{own.name}-train"]
    )

    first = (out / "seed-5" / "hero" / "eval.json").read_bytes()
    run_hero(*words(config, own, out, "--variants", "hero", "--train.steps=2", "--held-out", own))
    assert json.loads((out / "seed-5" / "hero" / "eval.json").read_bytes()) != json.loads(first)

    other = copy_tokens(data, tmp_path / "other")
    assert_exit_2(
        hero(*words(config, other, out, *one)),
        f"--data: found {other}, expected {own}, as when {out}/seed-5/baseline was started",
    )
    tokens = Path(f"{own}-train.bin")
    changed = bytearray(tokens.read_bytes())
    changed[100] ^= 1
    tokens.write_bytes(changed)
    assert_exit_2(hero(*words(config, own, out, *one)), f"{tokens}: found ", "state.json; restore the file")


def test_validation_during_training(data: Path, tmp_path: Path) -> None:
    """The last validation of every run agrees with the evaluation by the study."""
    config = tmp_path / "tiny.toml"
    config.write_text(toml(SETTINGS | {"eval.every": 4, "checkpoint.every": 4, "checkpoint.keep_best": True}))
    out = tmp_path / "study"
    run_hero(*words(config, data, out, "--variants", "baseline,hero", "--seeds", 1))
    for name in ("baseline", "hero"):
        run = out / "seed-5" / name
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "valid_loss" in line] == [4, 8]
        evaluation = json.loads((run / "eval.json").read_text())["datasets"][0]["loss"]
        # hero eval has other batches, so that the sums round differently.
        assert lines[-1]["valid_loss"] == pytest.approx(evaluation, rel=1e-3)
        assert json.loads((run / "best.json").read_text())["step"] in (4, 8)
