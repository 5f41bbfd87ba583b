"""`hero plan`: tables, JSON, the drawing, and rejected input."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from program import CONFIGS, SMALL, assert_exit_2, hero, run_hero, toml

CLUSTERS = CONFIGS / "clusters"
RUN = SMALL | {"model.vocab_size": 512, "train.global_batch": 16, "router.kind": "hero", "router.stages": 3}
MACHINE = {
    "gpus": 4,
    "gpus_per_node": 2,
    "teraflops": 100,
    "memory_gib": 10,
    "bandwidth_node_gbs": 100.0,
    "bandwidth_network_gbs": 10.0,
}


@pytest.fixture
def files(tmp_path: Path) -> list[Any]:
    """The arguments of a command for RUN on MACHINE."""
    (tmp_path / "run.toml").write_text(toml(RUN))
    (tmp_path / "machine.toml").write_text(toml(MACHINE))
    return ["plan", "--config", tmp_path / "run.toml", "--cluster", tmp_path / "machine.toml"]


def test_table_and_json_agree(files: list[Any]) -> None:
    plan = json.loads(run_hero(*files, "--json", "--top", 5).stdout)
    text = run_hero(*files, "--top", 5).stdout
    assert plan["cluster"]["gpus"] == 4 and plan["cluster"]["efficiency"] == 0.4
    assert f"{plan['layouts_tried']} layouts, {plan['layouts_fitting']} fit" in text
    rows = re.findall(r"^ +(\d) +(\d+) +(\d+) +(\d+) (.*)$", text, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [1, 2, 3, 4, 5]
    for row, layout in zip(rows, plan["layouts"], strict=True):
        ranks = [layout[f"parallel.{name}"] for name in ("data", "pipeline", "expert")]
        assert list(map(int, row[1:4])) == ranks and f"{layout['hero_stage']['seconds']:.4f}" in row[4]
        assert sum(layout["baseline"]["time"].values()) == pytest.approx(layout["baseline"]["seconds"])
    seconds = [layout["hero_stage"]["seconds"] for layout in plan["layouts"]]
    assert seconds == sorted(seconds)
    first = plan["layouts"][0]["hero_stage"]
    share = re.search(r"^matrix products +([\d.]+)%", text, re.MULTILINE)
    assert share and float(share[1]) == pytest.approx(
        100 * first["time"]["matrix products"] / first["seconds"], abs=0.06
    )


def test_flags_of_the_first_layout_reproduce_it(files: list[Any]) -> None:
    words = next(line for line in run_hero(*files).stdout.splitlines() if line.startswith("layout 1: --"))
    plan = json.loads(run_hero(*files, "--json", "--top", 1).stdout)
    own = json.loads(run_hero(*files, "--json", "--own-layout", *words.split()[2:]).stdout)
    assert own["layouts"] == plan["layouts"]


def test_drawing(files: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "schedule.svg"
    flags = ["--parallel.pipeline=2", "--parallel.schedule=zero_bubble", "--train.micro_batch=4"]
    run_hero(*files, "--own-layout", *flags, "--draw", out)
    boxes = [g for g in ElementTree.parse(out).iter("{http://www.w3.org/2000/svg}g")]
    assert len(boxes) == 2 * 2 * 3  # two stages, two micro-batches per data rank, three passes


def test_layout_to_draw(files: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "schedule.svg"
    layouts = json.loads(run_hero(*files, "--json", "--top", 1000).stdout)["layouts"]
    pipelines = [i for i, layout in enumerate(layouts, 1) if layout["parallel.pipeline"] > 1]
    single = next(i for i, layout in enumerate(layouts, 1) if layout["parallel.pipeline"] == 1)

    def check_drawn(number: int, *words: Any) -> None:
        run_hero(*files, "--top", 1000, "--draw", out, *words)
        svg = ElementTree.parse(out)
        layout = layouts[number - 1]
        stages, schedule = layout["parallel.pipeline"], layout["parallel.schedule"]
        micro_batches = RUN["train.global_batch"] // layout["parallel.data"] // layout["train.micro_batch"]
        title = svg.findtext("{http://www.w3.org/2000/svg}text")
        expected = f"layout {number}: {schedule}, {stages} stages, {micro_batches} micro-batches: "
        assert title and title.startswith(expected)
        passes = 3 if schedule == "zero_bubble" else 2
        boxes = list(svg.iter("{http://www.w3.org/2000/svg}g"))
        assert len(boxes) == stages * layout["parallel.chunks"] * micro_batches * passes

    check_drawn(pipelines[0])
    check_drawn(pipelines[-1], "--draw-layout", pipelines[-1])
    out.unlink()

    def reject(words: list[Any], *parts: str) -> None:
        assert_exit_2(hero(*files, *words), *parts)
        assert not out.exists()

    draw = ["--draw", out]
    reject([*draw, "--top", 5, "--draw-layout", 6], "--draw-layout: found 6", "1 to 5")
    words = [*draw, "--top", 1000, "--draw-layout", single]
    reject(words, f"--draw-layout: found {single}, a layout without a pipeline", f"such as {pipelines[0]}")
    reject([*draw, "--draw-layout", 0], "--draw-layout")
    reject(["--draw-layout", 1], "--draw-layout requires --draw")
    reject([*draw, "--own-layout"], "--draw: found parallel.pipeline = 1")
    reject([*draw, "--gpus", 1, "--top", 3], "--draw: found one stage in each of the 3 fastest", "--top")


def test_hours_of_the_paper() -> None:
    words = ["--parallel.data=64", "--parallel.pipeline=2", "--parallel.expert=8", "--hours", 71.88]
    paper = ["plan", "--config", CONFIGS / "paper-8b.toml", "--cluster", CLUSTERS / "paper.toml"]
    plan = json.loads(run_hero(*paper, *words, "--hero-hours", 74.65, "--json").stdout)
    assert plan["hours"]["baseline"] == pytest.approx(71.88, abs=1e-6)
    assert plan["layouts"][0]["baseline"]["seconds"] == pytest.approx(71.88 * 3600 / 25_000, abs=1e-8)
    assert 71.88 < plan["hours"]["hero_stage"] < plan["hours"]["hero_global"] < 74.65
    assert plan["hours"]["measured"] == {"baseline": 71.88, "hero_stage": 74.65}


@pytest.mark.parametrize(
    ("change", "words", "parts"),
    [
        ({"gpu": 4}, [], ["machine.toml:7: gpu: unknown key", "gpus?"]),
        ({"teraflops": 0}, [], ["machine.toml:3: teraflops: found 0", "above 0"]),
        ({"gpus": 3}, [], ["machine.toml: gpus: found 3", "a multiple of gpus_per_node = 2"]),
        ({"memory_gib": 0.001, "reserved_gib": 0}, [], ["memory_gib: found 0.001", "smallest of"]),
        ({"gpus": 34}, [], ["train.global_batch: found 16", "34 GPUs"]),
        ({}, ["--efficiency", 2], ["--efficiency: found 2.0", "below 1"]),
        ({}, ["--hours", 1e-9], ["--hours: found", "per step"]),
        ({}, ["--hero-hours", 5], ["--hero-hours: found no --hours"]),
        (
            {},
            ["--own-layout", "--parallel.pipeline=3"],
            ["parallel: found data 0 x pipeline 3", "4 GPUs"],
        ),
    ],
)
def test_rejects_invalid_commands(
    files: list[Any], tmp_path: Path, change: dict[str, Any], words: list[Any], parts: list[str]
) -> None:
    (tmp_path / "machine.toml").write_text(toml(MACHINE | change))
    assert_exit_2(hero(*files, *words), *parts)


def test_rejects_invalid_cluster_files(files: list[Any], tmp_path: Path) -> None:
    assert_exit_2(
        hero(*files[:3], "--cluster", tmp_path / "none.toml"), "none.toml: no such file", "a TOML file"
    )
    assert_exit_2(hero(*files[:3], "--cluster", "nowhere"), "--cluster: nowhere: no such file", "h200-256")
    (tmp_path / "machine.toml").write_text("gpus = \n")
    assert_exit_2(hero(*files), "machine.toml:1", "invalid TOML")
    assert_exit_2(hero(*files[:3]), "--gpus: found nothing", "--cluster")
