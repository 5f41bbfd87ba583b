"""Random runs that stop and continue, in all types and with many threads: `--resume` and `--branch` repeat the
uninterrupted run bit by bit, and with changed options both compute the same bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from layout_strategies import STEPS, Case, layouts, trained_models
from program import ROOT, checkpoint, copy_stopped_at, deterministic_rank_metrics, folder_bytes, metrics
from random_cases import property_tests, reproduce
from random_data import train_words
from ranks import expect_ranks_succeed
from strategies import DrawFn, Options, option

ALWAYS = {"checkpoint.every": 1, "checkpoint.keep": 0, "train.routing_every": 1, "parallel.timeout": 60}

# Options that may change on resume, but those of the layout, with values for runs of STEPS steps.
CHANGES: dict[str, list[Any]] = {
    "train.steps": [STEPS, STEPS + 1],
    "train.norms_every": [0, 1, 2],
    "train.skip_nonfinite": [0, 2],
    "train.spike_skip": [0.0, 3.0],
    "optim.lr": [1e-3, 5e-3],
    "optim.min_lr": [0.0, 1e-4],
    "optim.beta1": [0.0, 0.8],
    "optim.beta2": [0.9, 0.99],
    "optim.eps": [1e-8, 1e-5],
    "optim.weight_decay": [0.0, 0.3],
    "optim.clip_norm": [0.0, 0.1],
    "optim.muon_momentum": [0.3, 0.9],
    "optim.router_lr": [0.0, 1.5],
    "optim.history_lr": [0.0, 1.5],
    "optim.history_weight_decay": [-1.0, 0.4],
    "optim.schedule": ["constant", "cosine", "linear"],
    "eval.every": [0, 1, 2],
    "eval.batches": [0, 1],
}
UNCHANGED = {
    "train.device", "train.cuda_graph", "train.threads", "train.routing_every", "train.log_every", "data.phase",
    "optim.warmup_steps", "optim.decay_steps", "optim.decay_shape", "optim.offload_folder", "eval.data",
}  # fmt: skip


@st.composite
def cases(draw: DrawFn) -> Case:
    options = draw(trained_models()) | {
        "train.dtype": draw(option("bf16", "fp32", "fp64")),
        "train.threads": draw(option(1, 1, 2, 5)),
        "train.spike_skip": draw(option(0.0, 3.0)),
    }
    # Several processes take long to start.
    alone = draw(option(True, True, False))
    ranks, layout = (1, {}) if alone else draw(layouts(options, options["train.global_batch"]))
    keys = draw(st.lists(option(*CHANGES), unique=True, min_size=1, max_size=4))
    return {
        "options": options,
        "ranks": ranks,
        "layout": layout,
        "stop": draw(st.integers(1, STEPS - 1)),
        "branch": draw(st.booleans()),
        "changes": {key: draw(option(*CHANGES[key])) for key in keys},
    }


def continued(case: Case, run: Path, words: list[Any], changes: Options) -> Path:
    """`hero train` with these words and changed options; returns the run folder."""
    flags = [f"--{key}={value}" for key, value in changes.items()]
    words = ["train", "--run", run, *words, *flags]
    expect_ranks_succeed(words, case["ranks"], run.with_suffix(".log"), case["options"] | changes)
    return run


def assert_same_end(run: Path, other: Path, stop: int) -> None:
    """The steps after `stop`."""
    last = metrics(other)[-1]["step"]
    found, expected = (deterministic_rank_metrics(each)[-(last - stop) :] for each in (run, other))
    assert [line["step"] for line in found] == list(range(stop + 1, last + 1))
    assert found == expected, "different metrics"
    for step in range(stop + 1, last + 1):
        assert folder_bytes(checkpoint(run, step)) == folder_bytes(checkpoint(other, step)), f"step {step}"


def check(case: Case, folder: Path) -> None:
    stop, changes, whole = case["stop"], case["changes"], folder / "whole"
    options = case["options"] | case["layout"] | ALWAYS
    expect_ranks_succeed(train_words(whole, options), case["ranks"], folder / "whole.log", options)
    words = ["--branch", f"{whole}@{stop}"]
    if case["branch"]:
        same = continued(case, folder / "same", words, {})
    else:
        same = continued(case, copy_stopped_at(stop, whole, folder / "same"), ["--resume"], {})
    assert_same_end(same, whole, stop)
    resumed = continued(case, copy_stopped_at(stop, whole, folder / "resumed"), ["--resume"], changes)
    assert_same_end(continued(case, folder / "changed", words, changes), resumed, stop)
    assert deterministic_rank_metrics(resumed)[:stop] == deterministic_rank_metrics(whole)[:stop]


def test_every_option_that_may_change() -> None:
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    free = set(re.findall(r"^\| `((?!parallel|checkpoint)[\w.]+)` .* \| free \|", page, re.MULTILINE))
    assert set(CHANGES) | UNCHANGED == free


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
