"""Random models, window lengths and batch sizes: `hero eval` and `hero analyze` report the loss and the expert shares of
the model's logits and routing, and an exported folder the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.numpy import load_file

import hero_moe
from layout_strategies import STEPS, trained_models
from program import checkpoint, hero, run_hero
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import HELD_OUT, train_words
from strategies import DrawFn

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = "second-valid"
HEADER = 34  # bytes of an index file before the lengths of its documents
TOLERANCE = 1e-10  # of losses


@st.composite
def cases(draw: DrawFn) -> Case:
    """A capacity outside training depends on the tokens of a batch, so there is none."""
    options = draw(trained_models()) | {"router.eval_capacity_factor": 0.0}
    longest = options["model.max_position_embeddings"]
    return {
        "options": options,
        "sequence": draw(st.integers(1, longest)),
        "batch": draw(st.integers(1, 9)),
    }


def pieces(case: Case, data: Path, count: int) -> list[tuple[int, int]]:
    """Begin and end of the inputs that see each other: windows, cut at documents with a document mask."""
    cuts = set(range(0, count, case["sequence"]))
    if case["options"]["train.document_mask"]:
        lengths = np.fromfile(data.with_suffix(".idx"), "<i4", HELD_OUT, offset=HEADER)
        cuts |= set(np.cumsum(lengths).tolist()) - {count, count + 1}
    return list(zip(sorted(cuts), [*sorted(cuts)[1:], count]))


def expected_losses(
    model: hero_moe.LanguageModel, parts: list[tuple[int, int]], tokens: np.ndarray, mask: np.ndarray
) -> list[float]:
    """The mean loss of all targets and of those that the mask marks."""
    losses = []
    for begin, end in parts:
        logits = model.logits(tokens[begin:end].tolist())
        targets = torch.from_numpy(tokens[begin + 1 : end + 1])
        losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
    loss = torch.cat(losses)
    marked = torch.from_numpy(mask[1:]).bool()
    return [loss.mean().item(), loss[marked].mean().item()]


def expected_shares(
    folder: Path, experts: int, parts: list[tuple[int, int]], tokens: np.ndarray
) -> np.ndarray:
    """Fraction of the inputs that each expert receives, [L, E]."""
    lists = [tokens[begin:end].tolist() for begin, end in parts]
    (folder / "ids.json").write_text(json.dumps(lists))
    words = ["--tokens", folder / "ids.json", "--out", folder / "routing", "--routing", "--dtype", "fp64"]
    run_hero("logits", folder / "run", *words)
    routing = load_file(folder / "routing")
    chosen = {name: ids for name, ids in routing.items() if name.startswith("topk_ids")}
    share = np.zeros((len(chosen) // len(parts), experts))
    for name, ids in chosen.items():
        share[int(name.split(".")[2]) - 1] += np.bincount(ids.ravel(), minlength=experts)
    return share / (len(tokens) - 1)


def evaluate(case: Case, model: Path, data: Path) -> dict[str, Any]:
    run_hero("eval", model, "--data", data, "--sequence", case["sequence"], "--batch", case["batch"])
    return json.loads((model / "eval.json").read_text())["datasets"][0]


def check(case: Case, folder: Path) -> None:
    options, run, data = case["options"], folder / "run", folder / DATA
    done = hero(*train_words(run, options | {"checkpoint.every": 0}), cwd=folder)
    expect_success(done.returncode, done.stderr, options)
    tokens = np.fromfile(data.with_suffix(".bin"), np.uint16).astype(np.int64)
    mask = np.fromfile(f"{data}-mask.bin", np.uint8)
    found = evaluate(case, run, data)
    assert (found["tokens"], found["trained_tokens"]) == (len(tokens) - 1, mask[1:].sum())
    positions_only = options["train.document_positions"] and not options["train.document_mask"]
    model = hero_moe.load(checkpoint(run, STEPS), device="cpu")
    parts = pieces(case, data, len(tokens) - 1)
    if not positions_only:
        for name, want in zip(("loss", "trained_loss"), expected_losses(model, parts, tokens, mask)):
            assert abs(found[name] - want) <= TOLERANCE * want, f"{name}: {found[name]}, expected {want}"
    done = hero("analyze", run, "--out", folder / "analysis", "--data", data, "--sequence", case["sequence"],
        "--batch", case["batch"], "--numbers-only")  # fmt: skip
    if options["router.kind"] != "hero":
        assert done.returncode == 2 and "expected a HERO model" in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr
    analysis = json.loads((folder / "analysis" / "analysis.json").read_text())
    assert analysis["data"]["tokens"] == len(tokens) - 1
    assert abs(analysis["data"]["loss"] - found["loss"]) <= TOLERANCE * found["loss"]
    if not positions_only:
        want = expected_shares(folder, options["model.num_experts"], parts, tokens)
        np.testing.assert_allclose(analysis["expert_share"], want, rtol=0, atol=1e-12)


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
