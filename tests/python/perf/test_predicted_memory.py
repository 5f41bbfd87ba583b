"""The predicted memory of `hero cost` against the peak of a run, for random models that are large enough to dominate the
memory of the process."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import strategies as st

from program import SMALL, hero, metrics, run_hero, training, write_megatron
from random_cases import Case, expect_success, property_tests, reproduce
from strategies import DrawFn, number, option

MIB = 1 << 20
TABLE = "resident memory of hero train on CPUs"


def sixteens(low: int, high: int) -> st.SearchStrategy[int]:
    return number(low, high).map(lambda n: 16 * n)


@st.composite
def cases(draw: DrawFn) -> Case:
    model = draw(
        st.fixed_dictionaries(
            {
                "model.vocab_size": sixteens(64, 400),
                "model.hidden_size": sixteens(12, 20),
                "model.num_hidden_layers": number(2, 5),
                "model.num_experts": number(6, 24),
                "model.num_experts_per_tok": number(1, 6),
                "model.moe_intermediate_size": sixteens(6, 12),
                "model.intermediate_size": sixteens(20, 50),
                "model.tie_word_embeddings": st.booleans(),
                "model.max_position_embeddings": st.just(512),
            }
        )
    )
    if draw(st.booleans()):
        heads = draw(option(1, 2, 4))
        model |= {
            "model.num_attention_heads": heads * draw(option(1, 2)),
            "model.num_key_value_heads": heads,
            "model.head_dim": draw(sixteens(2, 4)),
        }
    else:
        model |= {
            "model.model_type": "deepseek_v3",
            "model.num_attention_heads": draw(number(2, 6)),
            "model.q_lora_rank": draw(option(0, 64, 96)),
            "model.kv_lora_rank": draw(option(48, 96)),
            "model.qk_nope_head_dim": draw(sixteens(1, 3)),
            "model.qk_rope_head_dim": 16,
            "model.v_head_dim": draw(sixteens(1, 3)),
            "model.first_k_dense_replace": draw(number(0, 1)),
            "model.n_shared_experts": draw(number(0, 2)),
            "model.num_nextn_predict_layers": draw(option(0, 0, 1)),
        }
    sequence, micro_batch = draw(option((128, 8), (256, 4), (512, 2)))
    steps, every = draw(option((2, 0), (3, 1)))
    training_options = {
        "train.sequence": sequence,
        "train.micro_batch": micro_batch,
        "train.global_batch": micro_batch * draw(option(1, 2)),
        "train.steps": steps,
        "train.dtype": draw(option("bf16", "fp32")),
        "train.recompute": draw(st.booleans()),
        "train.trainable": draw(option("all", "all", "routers")),
        "train.threads": draw(option(1, 2)),
        "optim.kind": draw(option("adamw", "adamw", "muon")),
        "checkpoint.every": every,
        "router.kind": draw(option("baseline", "hero", "hero", "rmoe")),
    }
    return {"options": model | training_options}


def peak_and_prediction(options: Case, folder: Path) -> tuple[float, dict[str, float]]:
    """Peak resident memory of a run, and its predicted parts [MiB]."""
    tokens = np.random.default_rng(0).integers(0, options["model.vocab_size"], 30_000).tolist()
    write_megatron(folder / "data-train", [tokens])
    result = hero(*training(folder / "run", folder / "data", options))
    expect_success(result.returncode, result.stderr, options)
    table: dict[str, Any] = json.loads(run_hero("cost", "--config", folder / "run.toml", "--json").stdout)[
        TABLE
    ]
    return metrics(folder / "run")[-1]["peak_memory_mib"], {
        n: v[options["router.kind"]] / MIB for n, v in table.items()
    }


@cache
def process_memory(dtype: str = "bf16") -> float:
    """Resident memory of the process without a model [MiB]; it depends on the machine and on the libraries that products
    of this dtype use."""
    with TemporaryDirectory() as folder:
        options = SMALL | {"model.vocab_size": 256, "router.kind": "hero", "train.dtype": dtype}
        found, predicted = peak_and_prediction(options, Path(folder))
    return found - predicted["peak"] + predicted["program and libraries"]


def check(case: Case, folder: Path) -> None:
    """The peak without the process itself, within 10% of the peak."""
    found, predicted = peak_and_prediction(case["options"], folder)
    tensors = predicted["peak"] - predicted["program and libraries"]
    error = (tensors - (found - process_memory(case["options"]["train.dtype"]))) / found
    parts = ", ".join(f"{name} {size:.0f}" for name, size in predicted.items())
    assert abs(error) < 0.10, f"{error:+.1%} of {found:.0f} MiB, predicted: {parts}"


test_fixed_cases, test_fresh_cases = property_tests(check, cases())


def test_memory_of_the_process() -> None:
    """Between half and twice the constant of the prediction, 150 MiB."""
    assert 75 < process_memory() < 300


if __name__ == "__main__":
    reproduce(check)
