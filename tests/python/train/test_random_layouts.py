"""Random models in random layouts: any layout matches one process; a run resumes in a different layout with
the same result, and in the same layout with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from layout_strategies import STEPS, Case, layout_cases, models_with_modules, resharding_cases
from program import checkpoint, copy_stopped_at, deterministic_rank_metrics, folder_bytes, metrics
from random_cases import property_tests, reproduce
from random_data import train_words
from ranks import expect_ranks_succeed

CLOSE = 1e-9  # relative tolerance of scalars, and of a tensor's largest element
ROUNDING = 1e-16  # what is zero up to rounding: the routers' gradient with one expert of normalized weight 1
AMPLIFIED = 1e-9  # and the RMS of weights that were zero, after updates from it, which optimizers amplify
ALWAYS = {
    "checkpoint.every": 1,
    "checkpoint.keep": 0,
    "parallel.timeout": 60,
    "train.routing_every": 1,
    "train.norms_every": 1,
}

# A resumed run keeps the layout options of its own configuration that are not given.
DEFAULT_LAYOUT = {
    "parallel.data": 0,
    "parallel.expert": 1,
    "parallel.chunks": 1,
    "parallel.chunk_sizes": [],
    "parallel.schedule": "1f1b",
    "optim.offload_folder": "",
}


def train(run: Path, ranks: int, options: dict[str, Any], *words: Any) -> None:
    """Runs `hero train` with `ranks` processes; Rejected or AssertionError on failure."""
    expect_ranks_succeed([*train_words(run, options), *words], ranks, run.with_suffix(".log"), options)


def final_weights(run: Path) -> dict[str, np.ndarray]:
    return {
        name: values
        for file in sorted(checkpoint(run, STEPS).glob("model*.safetensors"))
        for name, values in load_file(file).items()
    }


def assert_close(name: str, found: Any, expected: Any) -> None:
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert a.shape == b.shape, f"{name}: shape {a.shape}, expected {b.shape}"
    largest = np.abs(b).max(initial=0)
    difference = np.abs(a - b).max(initial=0)
    assert difference <= max(CLOSE * largest, ROUNDING), (
        f"{name}: differs by {difference / max(largest, 1e-300):.3g}"
    )


def per_layer(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def by_component(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {"": values}


def is_rounding(norms: Any, metric: str, component: str, layer: int) -> bool:
    """Whether a metric is the result of a gradient that is zero up to rounding, or of weights that only such
    gradients have changed."""
    if metric not in ("update_ratio", "weight_rms"):
        return False
    gradient, weights = (per_layer(norms[name][component])[layer] for name in ("grad_norm", "weight_rms"))
    return bool(weights <= AMPLIFIED or (metric == "update_ratio" and gradient <= ROUNDING))


def assert_close_norms(name: str, found: Any, expected: Any) -> None:
    """Metrics of numbers, null and lists of these, one per decoder layer; or of components, of which each has them."""
    assert found.keys() == expected.keys()
    for metric in expected:
        values, wanted = by_component(found[metric]), by_component(expected[metric])
        assert values.keys() == wanted.keys()
        for component in wanted:
            title = f"{name}.{metric}.{component}".rstrip(".")
            lists = [per_layer(values[component]), per_layer(wanted[component])]
            assert [v is None for v in lists[0]] == [v is None for v in lists[1]], title
            # Every value on its own: those of several layers differ by orders of magnitude.
            for layer, (a, b) in enumerate(zip(*lists, strict=True)):
                if b is None or all(is_rounding(run, metric, component, layer) for run in (found, expected)):
                    continue
                assert_close(title, a, b)


def assert_same_training(run: Path, other: Path) -> None:
    lines, expected = metrics(run), metrics(other)
    assert (
        [line["step"] for line in lines] == [line["step"] for line in expected] == list(range(1, STEPS + 1))
    )
    for line, want in zip(lines, expected, strict=True):
        assert line.keys() - {"ranks"} == want.keys() - {"ranks"}
        assert line.get("trained_tokens") == want.get("trained_tokens")
        for key in ("loss", "lm_loss", "mtp_loss", "grad_norm", "max_expert_share", "valid_loss"):
            assert_close(f"step {line['step']}: {key}", line.get(key, 0), want.get(key, 0))
        for name, value in want.get("valid", {}).items():
            assert_close(f"step {line['step']}: valid {name}", line["valid"][name], value)
        assert_close_norms(f"step {line['step']}: norms", line["norms"], want["norms"])
        for key, value in want["aux_losses"].items():
            assert_close(f"step {line['step']}: {key}", line["aux_losses"][key], value)
    weights, wanted = final_weights(run), final_weights(other)
    assert weights.keys() == wanted.keys()
    for name, values in wanted.items():
        assert_close(name, weights[name], values)


def check_layout(case: Case, folder: Path) -> None:
    train(folder / "alone", 1, case["options"] | ALWAYS)
    train(folder / "run", case["ranks"], case["options"] | case["layout"] | ALWAYS)
    assert_same_training(folder / "run", folder / "alone")


def check_resharding(case: Case, folder: Path) -> None:
    own, stop = case["options"] | ALWAYS, case["stop"]
    uninterrupted, resumed, other = folder / "uninterrupted", folder / "resumed", folder / "other"
    train(uninterrupted, case["ranks"], own | case["layout"])
    train(copy_stopped_at(stop, uninterrupted, resumed), case["ranks"], own | case["layout"], "--resume")
    final = checkpoint(uninterrupted, STEPS)
    assert folder_bytes(checkpoint(resumed, STEPS)) == folder_bytes(final), (
        "resumed in the same layout: different bytes"
    )
    logs = [deterministic_rank_metrics(run) for run in (resumed, uninterrupted)]
    assert logs[0] == logs[1], "resumed in the same layout: different metrics"
    train(
        copy_stopped_at(stop, uninterrupted, other),
        case["next_ranks"],
        own | DEFAULT_LAYOUT | case["next_layout"],
        "--resume",
    )
    assert_same_training(other, uninterrupted)


def check(case: Case, folder: Path) -> None:
    (check_resharding if "stop" in case else check_layout)(case, folder)


test_layouts, test_fresh_layouts = property_tests(check, layout_cases())
test_resharding, test_fresh_resharding = property_tests(check, resharding_cases())
test_modules, test_fresh_modules = property_tests(
    check, layout_cases(models_with_modules()) | resharding_cases(models_with_modules())
)

if __name__ == "__main__":
    reproduce(check)
