"""Study results: paired differences, intervals, figures and page, from synthetic runs with known losses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hero_moe.study.__main__ import main
from hero_moe.study.reading import load_study
from hero_moe.study.statistics import Noise, Sample, band, results
from study_folder import SEEDS, STEPS, write_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path)


def test_paired_differences_remove_the_seed_effect(study: Path) -> None:
    """Losses differ more between seeds than between variants; differences within a seed are exact."""
    base, hero, mask1 = results(load_study(study))
    assert hero.final_loss.deviation > 0.005
    assert hero.advantage.by_seed == pytest.approx({1: 0.02, 2: 0.03, 3: 0.04}, abs=1e-12)
    # Student's t with 2 degrees of freedom: 4.302653 (any table), deviation 0.01.
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert hero.advantage.mean == pytest.approx(0.03, abs=1e-12)
    assert (hero.advantage.low, hero.advantage.high) == pytest.approx((0.03 - half, 0.03 + half), abs=1e-8)
    assert hero.advantage.is_significant and not mask1.advantage.is_significant
    assert mask1.advantage.mean == pytest.approx(0.0, abs=1e-12)
    assert hero.late_growth.mean == pytest.approx(0.0, abs=1e-12)
    assert base.advantage.by_seed == {}


def test_held_out_loss_is_the_mean_over_tokens(study: Path) -> None:
    base, hero, _ = results(load_study(study))
    assert base.held_out.mean == pytest.approx(3.5, abs=1e-12)  # 3.3 and 3.7 with equal token counts
    assert hero.held_out_advantage.by_seed == pytest.approx({1: 0.02, 2: 0.03, 3: 0.04}, abs=1e-12)


def test_late_growth_compares_the_end_with_the_middle(study: Path) -> None:
    path = study / "seed-1" / "hero" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[48:]:
        line["lm_loss"] -= 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    hero = results(load_study(study))[1]
    assert hero.late_growth.by_seed == pytest.approx({1: 0.5, 2: 0.0, 3: 0.0}, abs=1e-12)


def test_peak_load_is_a_mean_over_the_last_tenth_with_an_interval(study: Path) -> None:
    """The last snapshot, which has the opposite order here, is not used; differences are paired by seed."""
    shares = {"baseline": (0.40, 0.30, 0.20), "hero": (0.35, 0.24, 0.13), "mask1": (0.40, 0.30, 0.20)}
    for name, by_seed in shares.items():
        for seed, share in zip(SEEDS, by_seed):
            run = study / f"seed-{seed}" / name
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            for record in records:
                late = record["step"] - (STEPS - 6)  # 1 to 6 in the last tenth
                record["max_expert_share"] = share + 0.01 * (late - 3.5) if late > 0 else 0.9
            (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
            snapshot = {"step": STEPS, "expert_share": [[0.9 if name == "hero" else 0.125] * 16] * 6}
            (run / "routing.jsonl").write_text(json.dumps(snapshot) + "\n")
    base, hero, mask1 = results(load_study(study))
    assert base.peak_load.by_seed == pytest.approx({1: 0.40, 2: 0.30, 3: 0.20}, abs=1e-12)
    assert hero.peak_change.by_seed == pytest.approx({1: -0.05, 2: -0.06, 3: -0.07}, abs=1e-12)
    half = 4.302653 * 0.01 / math.sqrt(3)
    assert (hero.peak_change.low, hero.peak_change.high) == pytest.approx(
        (-0.06 - half, -0.06 + half), abs=1e-8
    )
    assert hero.peak_change.is_significant and not mask1.peak_change.is_significant
    assert main([str(study)]) == 0
    table = (study / "table.md").read_text()
    assert "| 30.0% [5.2%, 54.8%] | – |" in table and "| −6.0 points [−8.5, −3.5] * |" in table
    numbers = json.loads((study / "results.json").read_text())["variants"]["hero"]
    assert numbers["peak_change"]["mean"] == pytest.approx(-0.06, abs=1e-12)
    assert set(numbers["peak_load"]["by_seed"]) == {"1", "2", "3"}


def test_one_seed_has_no_interval() -> None:
    sample = Sample.of({7: 0.1})
    assert sample.mean == 0.1 and math.isnan(sample.low) and not sample.is_significant
    assert math.isnan(Sample.of({}).mean)


def test_noise_is_the_residual_of_seed_and_variant() -> None:
    """Two-way layout by hand: seed effects 0 and 1, variant effects 0 and 0.5; 0.04 in one cell leaves +-0.01
    in all."""
    noise = Noise.of([{1: 3.0, 2: 4.0}, {1: 3.5, 2: 4.54}])
    assert noise is not None and noise.degrees == 1
    assert noise.deviation == pytest.approx(0.02, abs=1e-12)
    # Student's t with 1 degree of freedom: 12.706205; the difference of two means over 2 seeds: sqrt(2 / 2).
    assert noise.least_difference == pytest.approx({2: 12.706205 * 0.02}, abs=1e-7)


def test_noise_of_an_unfinished_study() -> None:
    """Runs with a unique seed add no information; a third variant with one of the two seeds adds no degree of
    freedom."""
    noise = Noise.of([{1: 3.0, 2: 4.0, 3: 9.0}, {2: 4.54, 1: 3.5, 4: 0.0}, {1: 7.0}])
    assert noise is not None and noise.degrees == 1 and noise.deviation == pytest.approx(0.02, abs=1e-12)
    assert noise.least_difference == pytest.approx(
        {1: 12.706205 * 0.02 * math.sqrt(2), 2: 12.706205 * 0.02}, abs=1e-7
    )


@pytest.mark.parametrize(
    "losses", [[], [{}], [{1: 3.0}, {1: 3.5}], [{1: 3.0}, {1: 3.5, 2: 4.0}], [{1: 1.0, 2: 2.0}]]
)
def test_noise_needs_residual_degrees_of_freedom(losses: list[dict[int, float]]) -> None:
    assert Noise.of(losses) is None


def test_band_is_mean_and_deviation_of_smoothed_curves() -> None:
    curves = [np.full(40, 1.0), np.full(40, 3.0)]
    one = band(curves)
    assert one.mean == pytest.approx(np.full(40, 2.0)) and one.deviation == pytest.approx(
        np.full(40, math.sqrt(2))
    )


def test_page_table_and_figures(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study)]) == 0
    printed = capsys.readouterr().out
    assert "| mask9 | = hero |" in printed and "+0.0300 [+0.0052, +0.0548] *" in printed
    numbers = json.loads((study / "results.json").read_text())
    assert numbers["variants"]["hero"]["advantage"]["mean"] == pytest.approx(0.03)
    assert numbers["variants"]["baseline"]["advantage"]["mean"] is None and numbers["same_as"] == {
        "mask9": "hero"
    }
    noise = numbers["noise"]["final_loss"]
    assert noise["degrees"] == 4 and list(noise["least_difference"]) == ["3"]
    html = (study / "report.html").read_text()
    assert f"below {noise['least_difference']['3']:.4f} over 3 seeds" in html
    assert html.count("<figure>") == 3 and "mask1 4" in html and "+50.00%" in html and "http" not in html
    names = {path.name for path in (study / "figures").iterdir()}
    assert names == {
        f"{name}.{extension}" for name in ("loss", "advantage", "final") for extension in ("png", "svg")
    }


def test_unfinished_seeds_are_named(study: Path) -> None:
    content = json.loads((study / "study.json").read_text())
    del content["variants"][1]["runs"]["3"]
    (study / "study.json").write_text(json.dumps(content))
    assert main([str(study)]) == 0
    assert "finished different numbers of seeds" in (study / "report.html").read_text()
    assert "is not evidence" not in (study / "report.html").read_text()
    del content["variants"][1]["runs"]["2"]
    (study / "study.json").write_text(json.dumps(content))
    assert main([str(study)]) == 0
    message = "A single pair of runs has no interval and is not evidence: hero."
    assert message in (study / "report.html").read_text()
    assert "points |" in (study / "table.md").read_text()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c.update(format=2), "study.json: format: expected 1"),
        (
            lambda c: c["variants"][0]["runs"].update({"1": "gone"}),
            "gone: no such folder, expected a run folder",
        ),
        (lambda c: c.update(steps=61), "metrics.jsonl: found 60 steps, expected the study's 61"),
        (lambda c: c["variants"][0].pop("cost"), "variants[0]: cost: found nothing, expected an object"),
        (
            lambda c: [v["runs"].clear() for v in c["variants"]],
            "found no finished run, expected at least one",
        ),
    ],
)
def test_errors_are_one_line(study: Path, capsys: pytest.CaptureFixture[str], change, expected: str) -> None:
    content = json.loads((study / "study.json").read_text())
    change(content)
    (study / "study.json").write_text(json.dumps(content))
    assert main([str(study)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and expected in message
    assert not (study / "report.html").exists() and not (study / "results.json").exists()
