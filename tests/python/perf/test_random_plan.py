"""Random models: every layout that `hero plan` lists trains and sends the predicted messages, and it accepts every
layout that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from layout_strategies import layouts, trained_models
from program import hero, metrics, run_hero, toml
from random_cases import Case, expect_success, property_tests, reproduce
from random_data import train_words
from ranks import run_ranks_checked
from strategies import DrawFn

MACHINE = [
    "--teraflops", 100, "--memory-gib", 80, "--bandwidth-node-gbs", 450, "--bandwidth-network-gbs", 50,
]  # fmt: skip


@st.composite
def cases(draw: DrawFn) -> Case:
    """A model, a layout for it, and which of the layouts of `hero plan` trains."""
    options = draw(trained_models())
    ranks, layout = draw(layouts(options, options["train.global_batch"]))
    return {
        "options": options,
        "ranks": ranks,
        "layout": layout,
        "nodes": draw(st.sampled_from([n for n in (1, 2, 3, 4) if ranks % n == 0])),
        "choice": draw(st.integers(0, 2**16)),
    }


def assert_messages(layout: dict[str, Any], options: dict[str, Any], run: Path) -> None:
    """Of a step between two stages of one chunk each: either rank sends the activations or their gradients, the
    first one the history."""
    if (layout["parallel.pipeline"], layout["parallel.chunks"]) != (2, 1):
        return
    kind = options["router.kind"]
    variant = f"hero_{options['router.history']}" if kind == "hero" else kind
    traffic = {name: size * layout["parallel.data"] for name, size in layout[variant]["traffic"].items()}
    sent = metrics(run)[0]["ranks"]
    either = traffic["activations between stages"] + traffic["embeddings between stages"]
    assert sent["activations_mib"] * 2**20 == pytest.approx(2 * either, rel=1e-9)
    assert sent["history_mib"] * 2**20 == pytest.approx(traffic["history between stages"], rel=1e-9)


def check(case: Case, folder: Path) -> None:
    options, ranks, layout = case["options"], case["ranks"], case["layout"]
    train_words(folder / "first", options)  # writes the data and the configuration
    words = ["plan", "--config", folder / "first.toml", *MACHINE, "--json"]
    words += ["--gpus", ranks, "--gpus-per-node", ranks // case["nodes"]]
    done = hero(*words, "--top", 1000)
    expect_success(done.returncode, done.stderr, options)
    found = json.loads(done.stdout)["layouts"]
    (folder / "own.toml").write_text(toml(layout | {"optim.offload_folder": ""}))
    words.insert(3, folder / "own.toml")
    (accepted,) = json.loads(run_hero(*words, "--own-layout").stdout)["layouts"]
    known = {key: value for key, value in layout.items() if key in accepted}
    assert {key: accepted[key] for key in known} == known
    chosen = found[case["choice"] % len(found)]
    listed: dict[str, Any] = {key: value for key, value in chosen.items() if "." in key}
    command = train_words(folder / "run", options | listed)
    run_ranks_checked(command, ranks, folder / "log")
    assert_messages(chosen, options, folder / "run")


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
