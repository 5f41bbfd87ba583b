"""`hero bench cost-table` and the predictions of `hero cost` agree with each other and with a run's
measurements. No test depends on timing."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from program import CONFIGS, SMALL, assert_exit_2, hero, run_hero, toml, training

MIB = 1 << 20
PAPER_COLUMNS = [
    "peak_memory_mib",
    "router_flops",
    "total_flops",
    "forward_ms",
    "router_step_ms",
    "total_training_hours",
]
FIXED = {"model.vocab_size": 96, "train.device": "cpu"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "small.toml"
    path.write_text(toml(SMALL | FIXED | {"train.global_batch": 4, "router.kind": "hero"}))
    return path


@pytest.fixture(scope="module")
def measured(config: Path) -> dict[str, Any]:
    words = ["--rounds", 2, "--steps", 2, "--warmup", 0, "--train-steps", 50, "--json"]
    return json.loads(run_hero("bench", "cost-table", "--config", config, *words).stdout)


def cost(*words: Any) -> dict[str, Any]:
    return json.loads(run_hero("cost", *words, "--json").stdout)


def test_every_round_measures_both_models(measured: dict[str, Any]) -> None:
    assert measured["rounds"] == 2 and measured["steps"] == 2 and measured["layers"] == 3
    assert measured["tokens_a_step"] == 4 * 64 and measured["micro_batches"] == 2
    assert (
        measured["machine"]["gpu"] is None
        and measured["machine"]["cores"] >= 1
        and measured["machine"]["cpu"]
    )
    assert list(measured["columns"])[:6] == PAPER_COLUMNS
    for name, column in measured["columns"].items():
        for side in ("baseline", "hero"):
            values = column[side]["rounds"]
            assert len(values) == 2 and all(value > 0 for value in values), name
            assert column[side]["median"] == pytest.approx(statistics.median(values))
            assert (column[side]["min"], column[side]["max"]) == (min(values), max(values))


def test_differences_match_the_two_rows(measured: dict[str, Any]) -> None:
    for column in measured["columns"].values():
        base, with_history = column["baseline"], column["hero"]
        difference = column["difference"]
        assert difference["absolute"] == pytest.approx(with_history["median"] - base["median"], abs=1e-12)
        assert difference["percent"] == pytest.approx(100 * difference["absolute"] / base["median"])
        pairs = zip(base["rounds"], with_history["rounds"], strict=True)
        assert difference["percent_rounds"] == pytest.approx([100 * (b / a - 1) for a, b in pairs], abs=1e-9)


def test_operations_match_hero_cost(measured: dict[str, Any], config: Path) -> None:
    counted, columns = cost("--config", config), measured["columns"]
    router = counted["router operations of a step"]
    for side in ("baseline", "hero"):
        expected = {
            "router_flops": router["paper's count"][side],
            "router_flops_exact": router["exact"][side],
            "total_flops": counted["operations of a step, paper's count"]["total"][side],
            "total_flops_exact": counted["operations of a step, exact"]["total"][side],
        }
        assert {name: columns[name][side]["median"] for name in expected} == pytest.approx(expected)
        assert measured["parameters"] == counted["parameters"]["total"]["hero"]


def test_training_time_covers_the_requested_steps(measured: dict[str, Any]) -> None:
    assert measured["train_steps"] == 50
    for side in ("baseline", "hero"):
        step = measured["columns"]["step_ms"][side]["rounds"]
        hours = measured["columns"]["total_training_hours"][side]["rounds"]
        assert hours == pytest.approx([50 * ms / 3.6e6 for ms in step])


def test_router_and_forward_times_are_parts_of_the_step(measured: dict[str, Any]) -> None:
    columns = measured["columns"]
    for side in ("baseline", "hero"):
        assert columns["router_step_ms"][side]["median"] < columns["step_ms"][side]["max"]
        assert 2 * columns["forward_ms"][side]["min"] < columns["step_ms"][side]["max"]  # two micro-batches


def test_tensors_grow_by_the_history(measured: dict[str, Any]) -> None:
    """18 bytes per history weight in bf16, 2 per stored probability; sums of squares are freed after the
    forward pass."""
    weights, slots, tokens = (1 + 2) * 8 * 8, 2, 2 * 64
    expected = (18 * weights + 2 * tokens * slots * 8) / MIB
    assert measured["columns"]["tensor_peak_mib"]["difference"]["absolute"] == pytest.approx(
        expected, rel=0.02
    )


def test_table_has_the_columns_of_the_paper(config: Path) -> None:
    words = ["--rounds", 1, "--steps", 1, "--warmup", 0]
    result = run_hero("bench", "cost-table", "--config", config, *words)
    lines = result.stdout.splitlines()
    head = next(line for line in lines if "peak memory" in line)
    titles = "peak memory|router FLOPs|total FLOPs|forward time|router step time|total train time"
    assert re.findall(titles, head) == titles.split("|")
    rows = {
        name: line for line in lines for name in ("baseline", "HERO", "difference") if line.startswith(name)
    }
    numbers = {name: [float(x) for x in line.split()[1:]] for name, line in rows.items()}
    assert [len(values) for values in numbers.values()] == [6, 6, 6]
    for base, with_history, difference in zip(*numbers.values(), strict=True):
        assert difference == pytest.approx(with_history - base, abs=0.011 + 0.1 * (base > 1000))
    assert "cores" in lines[0] and "3 layers" in lines[1] and "1 rounds of 1 steps" in lines[1]
    assert "step" in result.stderr and "left" not in result.stderr.splitlines()[-1]


def test_layers_option_scales_stages_proportionally(config: Path) -> None:
    settings = ["--model.num_hidden_layers=9", "--router.stages=2", "--router.stage_sizes=[3,6]"]
    words = ["--layers", 3, "--rounds", 1, "--steps", 1, "--warmup", 0, "--json"]
    found = json.loads(run_hero("bench", "cost-table", "--config", config, *settings, *words).stdout)
    counted = cost("--config", config, "--router.stages=2", "--router.stage_sizes=[1,2]")
    assert found["layers"] == 3
    assert found["columns"]["router_flops"]["hero"]["median"] == pytest.approx(
        counted["router operations of a step"]["paper's count"]["hero"]
    )


def test_history_with_gradient_has_no_router_time(config: Path) -> None:
    words = ["--rounds", 1, "--steps", 1, "--warmup", 0, "--router.detach=false"]
    found = json.loads(run_hero("bench", "cost-table", "--config", config, *words, "--json").stdout)
    assert found["columns"]["router_step_ms"] is None and found["columns"]["step_ms"]
    rows = run_hero("bench", "cost-table", "--config", config, *words).stdout.splitlines()
    assert [line.split()[5] for line in rows if line.startswith(("baseline", "HERO"))] == ["-", "-"]


def test_forward_passes_alone(config: Path) -> None:
    words = ["--rounds", 1, "--steps", 2, "--warmup", 0, "--forward"]
    found = json.loads(run_hero("bench", "cost-table", "--config", config, *words, "--json").stdout)
    columns, tokens = found["columns"], 2 * 64
    assert found["forward"] and found["tokens_a_step"] == tokens and found["micro_batches"] == 1
    assert columns["step_ms"] is None and columns["total_training_hours"] is None
    # Three layers of 8 experts; the second sees one layer, the third two.
    own, history = 2 * tokens * 3 * 8 * int(SMALL["model.hidden_size"]), 2 * tokens * 3 * 8 * 8
    for key in ("router_flops", "router_flops_exact"):
        router = columns[key]
        assert (router["baseline"]["median"], router["hero"]["median"]) == (own, own + history)
    assert columns["total_flops"]["difference"]["absolute"] == history
    for side in ("baseline", "hero"):
        assert columns["router_step_ms"][side]["median"] < columns["forward_ms"][side]["max"]
    lines = run_hero("bench", "cost-table", "--config", config, *words).stdout.splitlines()
    assert "128 tokens per pass" in lines[1] and "1 rounds of 2 passes" in lines[1]
    assert [line.split()[-1] for line in lines if line.startswith(("baseline", "HERO"))] == ["-", "-"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--config", CONFIGS / "demo.toml"], ["model.vocab_size: found 0"]),
        (
            ["--config", CONFIGS / "small-qwen3.toml", "--layers", 9],
            ["--layers: found 9", "num_hidden_layers = 8"],
        ),
        (["--config", CONFIGS / "small-qwen3.toml", "--rounds", 0], ["--rounds"]),
        (["--config", CONFIGS / "small-qwen3.toml", "--router.windo=3"], ["--router.windo: unknown key"]),
        (["--config", CONFIGS / "small-qwen3.toml", "--router.stages=9"], ["router.stages: found 9"]),
        (["--config", CONFIGS / "none.toml"], ["none.toml"]),
        (
            ["--config", CONFIGS / "paper-8b.toml", "--model.num_experts=8192"],
            ["memory: found ", "MiB available", "`hero cost` predicts", "--layers", "--forward"],
        ),
        (
            ["--config", CONFIGS / "paper-8b.toml", "--forward", "--model.n_routed_experts=8192"],
            ["memory: found ", "MiB available", "`hero cost` predicts"],
        ),
        (
            ["--config", CONFIGS / "small-qwen3.toml", "--train.device=tpu"],
            ["train.device: found tpu", "one of auto, cpu, cuda"],
        ),
    ],
)
def test_rejects_invalid_commands(words: list[Any], parts: list[str]) -> None:
    assert_exit_2(hero("bench", "cost-table", *words), *parts)


def test_reports_the_failing_model(config: Path) -> None:
    """The child process reports the error, the parent the model."""
    result = hero("bench", "cost-table", "--config", config, "--rounds", 1, "--optim.lr=1e30", "--steps", 9)
    assert result.returncode == 1
    assert (
        "the loss is" in result.stderr
        and "process of the baseline model exited with status 1" in result.stderr
    )


def test_predicted_time_is_operations_and_bytes_over_throughput(config: Path) -> None:
    counted = cost("--config", config, "--rate", 2, "--bandwidth", 10)
    time, operations = counted["predicted time of a step"], counted["operations of a step, exact"]
    for part, sides in operations.items():
        if part != "total":
            assert time[part] == pytest.approx({side: n / 2e12 for side, n in sides.items()})
    weights = counted["parameters"]["total"]["hero"]
    assert time["optimizer in memory"]["hero"] == pytest.approx(weights * 34 / 10e9)  # bytes per bf16 weight
    assert time["total"]["hero"] == pytest.approx(sum(t["hero"] for n, t in time.items() if n != "total"))
    without = cost("--config", config, "--rate", 2)["predicted time of a step"]
    assert set(time) - set(without) == {n for n in time if n.endswith("in memory")}
    assert "predicted time of a step" not in cost("--config", config)


def test_throughput_can_be_measured(config: Path) -> None:
    text = run_hero("cost", "--config", config, "--measure").stdout
    assert re.search(r"^\d+\.\d{3} TFLOP/s of bf16 matrix products, \d+\.\d GB/s$", text, re.MULTILINE)
    assert "predicted time of a step [ms]" in text


def test_rejects_bandwidth_without_rate(config: Path) -> None:
    assert_exit_2(hero("cost", "--config", config, "--bandwidth", 10), "--bandwidth", "--rate")


def gemm_kernels(**variables: str) -> dict[str, Any]:
    result = hero("bench", "gemm", "--json", variables=variables)
    assert result.returncode == 0 and result.stderr == ""
    return json.loads(result.stdout)


def test_gemm_kernels_are_listed_with_the_used_one() -> None:
    found = gemm_kernels(HERO_GEMM="")
    names = list(found["flops_per_second"])
    assert found["used"] == names[0] and names[-1] == "sse2"
    assert all(rate > 1e8 for rate in found["flops_per_second"].values())
    for name in names:
        assert gemm_kernels(HERO_GEMM=name)["used"] == name
    assert gemm_kernels(HERO_PLAIN="1")["used"] is None
    lines = hero("bench", "gemm", variables={"HERO_GEMM": names[-1]}).stdout.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert [line.endswith("GFLOP/s  used") for line in lines] == [name == names[-1] for name in names]


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
def test_training_starts_with_the_gemm_throughput(tmp_path: Path, data: Path, dtype: str) -> None:
    words = training(tmp_path / "run", data, {"train.dtype": dtype, "train.steps": 2})
    result = hero(*words, variables={"HERO_GEMM": "sse2", "ATEN_CPU_CAPABILITY": "avx2"})
    instructions = "sse2" if dtype == "bf16" else "avx2"
    pattern = rf" threads, {dtype} GEMM at (\S+) TFLOP/s \({instructions}\), starting$"
    assert result.returncode == 0, result.stderr
    (match,) = re.findall(pattern, result.stderr, re.MULTILINE)
    assert float(match) > 1e-4
