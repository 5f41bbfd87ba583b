"""Pairs of random models: `hero diff` reports the first activation that a changed weight reaches, the differences of
logits that numpy finds, and models whose layers are of other kinds."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from layout_strategies import STEPS, trained_models
from program import checkpoint, hero, run_hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from strategies import DrawFn, Options, moe_layers

ROW = re.compile(
    r"^(embedding|layer \d+(?: router)?|final norm|logits) +(\S+)(  <- first above the tolerance)?$"
)


@st.composite
def cases(draw: DrawFn) -> Case:
    options = draw(trained_models())
    layers = options["model.num_hidden_layers"]
    change: Options = {"router.stages": 1, "router.stage_sizes": [], "router.coupling_loss": 0.0}
    if draw(st.booleans()):
        change["model.num_hidden_layers"] = draw(st.integers(layers, layers + 2))
    elif options["model.model_type"] == "qwen3_moe":
        change["model.mlp_only_layers"] = draw(
            st.lists(st.integers(0, layers - 1), unique=True, max_size=layers - 1)
        )
    return {
        "options": options,
        "other": change if draw(st.booleans()) else {},
        "tensor": draw(st.integers(0, 999)),
        "tolerance": draw(st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 10.0])),
    }


def trained(run: Path, options: Options) -> Path:
    run.parent.mkdir()
    done = hero(*train_words(run, options | {"checkpoint.every": 0}), cwd=run.parent)
    expect_success(done.returncode, done.stderr, options)
    return run


def with_doubled_weight(run: Path, number: int) -> tuple[Path, str]:
    """A copy of a run, and the name of the tensor that is twice as large in it."""
    copy = Path(shutil.copytree(run, run.with_name("doubled")))
    file = checkpoint(copy, STEPS) / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[number % len(weights)]
    weights[name] = weights[name] * 2
    save_file(weights, file, {"format": "pt"})
    file.with_name("manifest.json").unlink()
    return copy, name


def activation_names(options: Options) -> list[str]:
    moe = moe_layers(options)
    layers = range(options["model.num_hidden_layers"])
    inner = [[f"layer {i} router"] * (i in moe) + [f"layer {i}"] for i in layers]
    return ["embedding", *sum(inner, []), "final norm", "logits"]


def reached(tensor: str, names: list[str]) -> list[str]:
    """The activations that may depend on a tensor; of a module for multi-token prediction, none."""
    match = re.match(r"model\.layers\.(\d+)\.(.*)", tensor)
    if not match:
        first = {"model.embed_tokens.weight": "embedding", "model.norm.weight": "final norm"}.get(
            tensor, "logits"
        )
    else:
        layer, part = f"layer {match[1]}", match[2]
        inside = ".experts." in f".{part}" or "shared_expert" in part or "down_proj" in part
        first = layer if inside or f"{layer} router" not in names else f"{layer} router"
    return names[names.index(first) :] if first in names else []


def relative(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a - b).max() / np.abs(a).max())


def logits(run: Path, tokens: Path, options: Options) -> dict[str, np.ndarray]:
    """Those of routers and of the model, by the name of the activation."""
    out = run.parent / "logits.safetensors"
    run_hero("logits", run, "--tokens", tokens, "--out", out, "--routing", "--dtype", "fp64")
    found = load_file(out)
    names = {f"layer {i} router": f"router_logits.0.{n}" for n, i in enumerate(moe_layers(options), start=1)}
    return {name: found[key] for name, key in (names | {"logits": "logits.0"}).items()}


def check(case: Case, folder: Path) -> None:
    options, tolerance = case["options"], case["tolerance"]
    other_options = options | case["other"]
    a, tensor = trained(folder / "a" / "run", options), None
    if case["other"]:
        b = trained(folder / "b" / "run", other_options)
    else:
        b, tensor = with_doubled_weight(a, case["tensor"])
    random_ids = random.Random(case["tensor"])
    ids = [random_ids.randrange(options["model.vocab_size"]) for _ in range(options["train.sequence"])]
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps([ids]))
    done = hero("diff", a, b, "--tokens", tokens, "--dtype", "fp64", "--tolerance", tolerance)
    assert done.stderr == ""
    rows = [match.groups() for match in map(ROW.match, done.stdout.splitlines()) if match]
    names, others = activation_names(options), activation_names(other_options)
    common = next((i for i, (x, y) in enumerate(zip(names, others)) if x != y), len(names))
    assert [name for name, *_ in rows] == names[:common]
    differences = {name: float(value) for name, value, _ in rows}
    above = [name for name, value in differences.items() if value > tolerance]
    assert [name for name, _, mark in rows if mark] == above[:1]
    last = done.stdout.splitlines()[-1]
    if above:
        assert last == f"first difference at: {above[0]}"
    elif common < len(names):
        assert last.endswith(f"the next activation is {names[common]} in a and {others[common]} in b")
    else:
        assert last == f"all activations equal within relative tolerance {tolerance:g}"
    assert done.returncode == (1 if above or common < len(names) else 0)
    if tensor is not None:
        assert [name for name in names if name not in reached(tensor, names) and differences[name] > 0] == []
    logits_a, logits_b = logits(a, tokens, options), logits(b, tokens, other_options)
    for name in differences.keys() & logits_a.keys():
        want = relative(logits_a[name], logits_b[name])
        # Three digits are printed, and logits are stored in fp32.
        np.testing.assert_allclose(differences[name], want, rtol=6e-3, atol=1e-6, err_msg=name)


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
