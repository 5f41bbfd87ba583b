"""docs/options.md against the program: every option has a row and behaves as documented in each mode."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hero_moe
from program import (
    DEEPSEEK,
    ROOT,
    SMALL,
    assert_exit_2,
    configuration_keys,
    deterministic_metrics,
    hero,
    metrics,
    run_hero,
    tensor_bytes,
    toml,
    training,
)
from serving import serving

PAGE = ROOT / "docs" / "options.md"
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"router.kind": "hero"},
    "deepseek": {"router.kind": "hero"} | DEEPSEEK,
}
# Checkpoints hold fp32 weights; in fp64, other tokens of a batch affect a token's logits only by rounding,
# and no expert choice is close enough to a tie to change.
ROUNDING = 1e-12


@cache
def table() -> dict[str, list[str]]:
    """The cells of each option: training, inference, export, resume, ranks."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    cells = {key: rest.split(" | ") for key, rest in rows}
    assert len(cells) == len(rows) and {len(row) for row in cells.values()} == {5}
    return cells


@cache
def help_rows() -> dict[str, tuple[str, str, str]]:
    """Type, default and bounds of every option, in the order of the help."""
    return {key: (kind, default, bounds) for key, (kind, default, _, bounds) in configuration_keys().items()}


def test_every_option_has_a_row() -> None:
    assert list(table()) == list(help_rows())


def another(value: Any, kind: str, bounds: str) -> Any:
    """A different valid value of the option."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return next(choice for choice in bounds.split("|") if choice != value)
    if isinstance(value, list):
        return [*value, {"strings": "a", "tables": {"blend": ["a"]}}.get(kind, 1)]
    return value / 2 or 0.5 if isinstance(value, float) else value + 1


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def test_resume_column(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_hero(*training(run, data, {"train.steps": 2}))
    own = flat(tomllib.loads((run / "config.toml").read_text()))
    assert set(own) == set(table())
    other = tmp_path / "other.toml"
    other.write_text(
        toml({key: another(value, help_rows()[key][0], help_rows()[key][2]) for key, value in own.items()})
    )
    result = hero("train", "--config", other, "--run", run, "--resume")
    assert_exit_2(result, "the run was started with different settings")
    fixed = set(re.findall(r"[(,] ?(\w+\.[\w.]+): ", result.stderr))
    assert fixed == {key for key, cells in table().items() if cells[3].startswith("fixed")}
    assert {cells[3].split(":")[0] for cells in table().values()} == {"fixed", "free"}


Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A short run of a family with these settings, trained enough for uneven routing."""

    @cache
    def run(family: str, **settings: Any) -> Path:
        folder = tmp_path_factory.mktemp(family) / "run"
        short = {"train.steps": 4, "train.dtype": "fp32", "optim.lr": 1e-2, "optim.warmup_steps": 1}
        named = {key.replace("__", "."): value for key, value in settings.items()}
        run_hero(*training(folder, data, short | FAMILIES[family] | named))
        return folder

    return run


def exported(run: Path, to: Path, *words: Any) -> list[str]:
    """Exports a run and returns the lines on stderr."""
    return run_hero("export", run, to, *words).stderr.splitlines()


def program_logits(folder: Path, lists: list[list[int]], work: Path, *words: Any) -> dict[str, Tensor]:
    (work / "ids.json").write_text(json.dumps(lists))
    run_hero(
        "logits", folder, "--tokens", work / "ids.json", "--out", work / "out", "--dtype", "fp64", *words
    )
    # Clone: the next call overwrites the memory-mapped file.
    return {name: tensor.clone() for name, tensor in load_file(work / "out").items()}


def prompts() -> Tensor:
    return torch.randint(400, (4, 60), generator=torch.Generator().manual_seed(3))


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= ROUNDING * b.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_capacity_applies_only_in_training(trained: Trained, tmp_path: Path, family: str) -> None:
    """A prompt has the same logits alone, as a prefix, in a batch, served, and after export."""
    run = trained(family, router__capacity_factor=0.6)
    assert all(sum(line["layers"]["dropped"]) > 0 for line in metrics(run))
    assert exported(run, tmp_path / "exported") == []
    ids, cut = prompts(), 25
    rows = ids.tolist()
    alone = program_logits(run, [row[:cut] for row in rows], tmp_path)
    for folder in (run, tmp_path / "exported"):
        longer = program_logits(folder, rows, tmp_path)
        model = hero_moe.load(folder, dtype="fp64")
        batch = model.logits(ids)
        for n, row in enumerate(rows):
            want = alone[f"logits.{n}"]
            assert close(longer[f"logits.{n}"][:cut], want)
            assert close(model.logits(row[:cut]), want)
            assert close(batch[n][:cut], want)
        with serving(folder, "--dtype", "fp64", "--device", "cpu") as server:
            options = {"echo": True, "logprobs": 0, "max_tokens": 0}
            together = server.complete(rows, **options)["choices"]
            for n, row in enumerate(rows):
                (choice,) = server.complete([row[:cut]], **options)["choices"]
                logs = alone[f"logits.{n}"].double().log_softmax(-1)
                want = [logs[i, id].item() for i, id in enumerate(row[1:cut])]
                for found in (choice, together[n]):
                    assert found["logprobs"]["token_logprobs"][1:cut] == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_capacity_does_not_affect_generation(trained: Trained, tmp_path: Path, family: str) -> None:
    run = trained(family, router__capacity_factor=0.6)
    exported(run, tmp_path / "exported")
    words = ["--prompt", "def index(node):", "--max-tokens", 20, "--temperature", 0]
    text = run_hero("generate", run, *words).stdout
    assert len(text) > 20
    assert run_hero("generate", tmp_path / "exported", *words).stdout == text
    assert run_hero("generate", run, *words, "--no-cache").stdout == text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["probs", "position"])
def test_eval_capacity_applies_only_outside_training(
    trained: Trained, tmp_path: Path, family: str, policy: str
) -> None:
    plain = trained(family)
    run = trained(family, router__eval_capacity_factor=0.6, router__drop_policy=policy)
    assert tensor_bytes(run, 4) == tensor_bytes(plain, 4)
    lines = exported(run, tmp_path / "exported")
    assert len(lines) == 1 and lines[0].startswith("warning: router.eval_capacity_factor = 0.6 has no key in")
    rows = prompts().tolist()
    kept = program_logits(plain, rows, tmp_path)
    assert {n: v.tolist() for n, v in program_logits(tmp_path / "exported", rows, tmp_path).items()} == {
        n: v.tolist() for n, v in kept.items()
    }
    dropped = program_logits(run, rows, tmp_path)
    prefix = program_logits(run, [row[:25] for row in rows], tmp_path)
    assert not close(dropped["logits.0"], kept["logits.0"])
    # With drop_policy position, early tokens are kept more often, not always: the limit grows with the
    # prompt.
    assert not all(close(dropped[n][:25], prefix[n]) for n in prefix)


def test_force_balance_applies_only_in_training(trained: Trained, tmp_path: Path) -> None:
    run = trained("qwen3", router__force_balance=True)
    assert {share for line in metrics(run) for share in line["layers"]["max_over_mean"]} == {1.0}
    assert exported(run, tmp_path / "exported") == []
    rows = prompts().tolist()
    found = program_logits(run, rows, tmp_path, "--routing")
    for name in (n for n in found if n.startswith("router_logits")):
        chosen = found[name.replace("router_logits", "topk_ids")]
        assert torch.equal(chosen, found[name].topk(chosen.shape[1]).indices)
    again = program_logits(tmp_path / "exported", rows, tmp_path)
    assert all(torch.equal(again[f"logits.{n}"], found[f"logits.{n}"]) for n in range(len(rows)))


@pytest.mark.parametrize("family", FAMILIES)
def test_zero_init_starts_as_the_baseline(trained: Trained, family: str) -> None:
    first, second = (
        metrics(trained(family, router__kind=kind, router__init=init))
        for kind, init in (("baseline", "uniform"), ("hero", "zero"))
    )
    for key in ("loss", "lm_loss", "aux_losses", "max_expert_share"):
        assert first[0][key] == second[0][key]
    for key in ("max_over_mean", "entropy"):
        assert first[0]["layers"][key] == second[0]["layers"][key]
    # W_R has gradients from the first step, so later steps differ.
    assert second[0]["grad_norm"] > first[0]["grad_norm"]
    assert second[-1]["loss"] != first[-1]["loss"]


def warnings(result: Any) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("warning: ")]


def test_warns_about_options_without_effect(data: Path, tmp_path: Path) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    settings = {"train.steps": 2}
    assert warnings(run_hero(*training(plain, data, settings))) == []
    ineffective = {
        "router.window": 3,
        "router.drop_policy": "position",
        "train.cuda_graph": True,
        "parallel.history_top": 2,
        "model.kv_lora_rank": 8,
    }
    found = warnings(run_hero(*training(run, data, settings | ineffective)))
    assert [line.split()[1] for line in found] == [
        "model.kv_lora_rank",
        "router.window",
        "router.drop_policy",
        "train.cuda_graph",
        "parallel.history_top",
    ]
    assert all(" has no effect: " in line for line in found)
    # The results are identical.
    assert tensor_bytes(run, 2) == tensor_bytes(plain, 2) and deterministic_metrics(
        run
    ) == deterministic_metrics(plain)
    assert_exit_2(
        hero("train", "--run", run, "--resume", "--parallel.history_top=3"), "parallel.history_top: 2 -> 3"
    )


def test_init_of_a_loaded_router(data: Path, tmp_path: Path, trained: Trained) -> None:
    """router.init applies to new weights: a baseline's routers get W_R, HERO routers already have it."""
    words = ["--init-from", trained("qwen3"), "--router.init=zero"]
    found = warnings(
        run_hero(*training(tmp_path / "loaded", data, {"train.steps": 2} | FAMILIES["qwen3"], *words))
    )
    assert found == [
        'warning: router.init = "zero" has no effect: --init-from provides the weights of all routers'
    ]
    baseline = trained("qwen3", router__kind="baseline")
    words = ["--init-from", baseline, "--router.init=zero"]
    assert (
        warnings(run_hero(*training(tmp_path / "new", data, {"train.steps": 2} | FAMILIES["qwen3"], *words)))
        == []
    )


def test_history_weights_that_stay_zero(data: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", {"train.steps": 2, "router.kind": "hero", "router.init": "zero"}
    found = warnings(run_hero(*training(run, data, settings | {"optim.history_lr": 0.0})))
    assert found == [
        'warning: optim.history_lr = 0.0: with router.init = "zero" the history weights stay 0, so no router '
        "reads its history"
    ]
    assert warnings(run_hero(*training(tmp_path / "trained", data, settings))) == []
    # On resume, the history weights may have other values.
    longer = ["--train.steps=3", "--optim.decay_steps=2", "--optim.history_lr=0"]
    assert warnings(run_hero("train", "--run", tmp_path / "trained", "--resume", *longer)) == []


def test_asynchronous_checkpoints_are_identical(data: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "at-once", tmp_path / "waited"]
    for run, asynchronous in zip(runs, (True, False), strict=True):
        settings = {"checkpoint.every": 2, "checkpoint.asynchronous": asynchronous, "train.steps": 4}
        run_hero(*training(run, data, settings))
    for step in (2, 4):
        assert tensor_bytes(runs[0], step) == tensor_bytes(runs[1], step)


def test_router_dtype_in_an_exported_folder(trained: Trained, tmp_path: Path) -> None:
    """config.json has no key for router.dtype: bf16 export rounds router weights, fp32 export does not."""
    run = trained("qwen3", router__dtype="fp32", train__dtype="bf16")
    lines = exported(run, tmp_path / "half", "--dtype", "bf16")
    assert len(lines) == 1 and lines[0].startswith('warning: router.dtype = "fp32" has no key in config.json')
    assert exported(run, tmp_path / "single") == []
    gate = "model.layers.1.mlp.gate.weight"
    own = load_file(run / "checkpoints" / "step-00000004" / "model.safetensors")[gate]
    single, half = (load_file(tmp_path / name / "model.safetensors")[gate] for name in ("single", "half"))
    assert torch.equal(single, own) and torch.equal(half, own.bfloat16())
    assert hero_moe.load(run).dtype == "bf16" and hero_moe.load(tmp_path / "single").dtype == "fp32"


def test_test_settings_are_valid_options() -> None:
    assert set(SMALL) <= set(table())
