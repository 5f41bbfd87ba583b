"""Multi-token prediction: the same training in every layout, resume, metrics, export and import."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_compare import assert_close, program_logits
from program import (
    DEEPSEEK,
    assert_exit_2,
    assert_same_outcome,
    checkpoint,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    training,
)
from ranks import run_ranks_checked

MODEL: dict[str, Any] = DEEPSEEK | {
    "model.num_nextn_predict_layers": 2,
    "model.num_hidden_layers": 4,
    "router.kind": "hero",
    "router.stages": 2,
    "router.balance": "sequence",
    "router.balance_loss": 1e-2,
    "router.z_loss": 1e-3,
    "router.coupling_loss": 1e-3,
    "train.sequence": 40,
    "train.steps": 4,
    "train.micro_batch": 1,
    "train.global_batch": 8,
    "train.dtype": "fp64",
    "train.document_mask": True,
    "train.pack": "best_fit",
    "parallel.timeout": 60,
}
ZERO_BUBBLE: dict[str, Any] = {"parallel.schedule": "zero_bubble"}
INTERLEAVED: dict[str, Any] = {"parallel.schedule": "interleaved", "parallel.chunks": 2}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "micro-batches of 2": (1, {"train.micro_batch": 2}),
    "recomputation": (1, {"train.micro_batch": 8, "train.recompute": True}),
    "data 2": (2, {"train.micro_batch": 2}),
    "expert 2": (2, {"parallel.expert": 2}),
    "data 4, expert 2, recomputation": (4, {"parallel.expert": 2, "train.recompute": True}),
    "pipeline 2": (2, {"parallel.pipeline": 2, "train.micro_batch": 4}),
    "pipeline 2, data 2, zero bubble": (4, {"parallel.pipeline": 2, "parallel.data": 2} | ZERO_BUBBLE),
    "pipeline 2, expert 2, recomputation": (
        4,
        {"parallel.pipeline": 2, "parallel.expert": 2, "train.recompute": True},
    ),
}
# The routers of an rmoe stage share weights and stay in one chunk.
SPLIT_STAGES: dict[str, tuple[int, dict[str, Any]]] = {
    "pipeline 2, interleaved": (2, {"parallel.pipeline": 2} | INTERLEAVED),
    "pipeline 3": (3, {"parallel.pipeline": 3, "parallel.chunk_sizes": [1, 2, 1]}),
    "pipeline 4, zero bubble": (4, {"parallel.pipeline": 4} | ZERO_BUBBLE),
}
# What the layouts must agree on besides losses and weights.
LOGGED = {"train.norms_every": 2, "eval.every": 2, "eval.batches": 1}


def trained(run: Path, data: Path, settings: dict[str, Any], *words: Any, ranks: int = 1) -> Path:
    command = training(run, data, settings, *words)
    if ranks == 1:
        run_hero(*command)
    else:
        run_ranks_checked(command, ranks, run.with_suffix(".log"))
    return run


def weights(folder: Path) -> dict[str, np.ndarray]:
    files = sorted(folder.glob("model*.safetensors"))
    return {name: values for file in files for name, values in load_file(file).items()}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Micro-batches of one sequence."""
    return trained(tmp_path_factory.mktemp("alone") / "run", data, MODEL | LOGGED)


def numbers(value: Any) -> list[float]:
    """The numbers in objects and lists, in order."""
    if isinstance(value, dict | list):
        values = value.values() if isinstance(value, dict) else value
        return [number for item in values for number in numbers(item)]
    return [] if value is None else [value]


def assert_same_training(run: Path, other: Path) -> None:
    """Within 1e-9 in every loss, norm and weight."""
    for line, want in zip(metrics(run), metrics(other), strict=True):
        assert line.keys() - {"ranks"} == want.keys() - {"ranks"}
        for key in ("loss", "lm_loss", "mtp_loss", "grad_norm", "aux_losses", "valid_loss", "norms"):
            found, expected = numbers(line.get(key)), numbers(want.get(key))
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-16), key
    found_weights, wanted = weights(checkpoint(run, 4)), weights(checkpoint(other, 4))
    assert found_weights.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.abs(found_weights[name] - values).max() <= 1e-9 * np.abs(values).max(), name


@pytest.mark.parametrize("layout", LAYOUTS | SPLIT_STAGES)
def test_same_training_in_every_layout(data: Path, alone: Path, tmp_path: Path, layout: str) -> None:
    ranks, settings = (LAYOUTS | SPLIT_STAGES)[layout]
    run = trained(tmp_path / "run", data, MODEL | LOGGED | settings, ranks=ranks)
    assert_same_training(run, alone)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_recurrent_router_in_every_layout(data: Path, tmp_path: Path, layout: str) -> None:
    ranks, settings = LAYOUTS[layout]
    model = MODEL | LOGGED | {"router.kind": "rmoe"}
    run = trained(tmp_path / "run", data, model | settings, ranks=ranks)
    assert_same_training(run, trained(tmp_path / "alone", data, model))


@pytest.mark.parametrize("layout", SPLIT_STAGES)
def test_history_of_all_stages_with_muon(data: Path, tmp_path: Path, layout: str) -> None:
    """The modules' routers read layers of every rank."""
    ranks, settings = SPLIT_STAGES[layout]
    model = MODEL | {"router.history": "global", "optim.kind": "muon", "optim.clip_norm": 0.1}
    run = trained(tmp_path / "run", data, model | settings, ranks=ranks)
    assert_same_training(run, trained(tmp_path / "alone", data, model))


def test_resume_in_other_layouts(data: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chain = [LAYOUTS["pipeline 2, data 2, zero bubble"], (1, {}), SPLIT_STAGES["pipeline 2, interleaved"]]
    default = {
        "parallel.data": 0,
        "parallel.pipeline": 1,
        "parallel.chunks": 1,
        "parallel.schedule": "1f1b",
    }
    for step, (ranks, layout) in enumerate([*chain, SPLIT_STAGES["pipeline 4, zero bubble"]], start=1):
        settings = MODEL | LOGGED | {"checkpoint.every": 1, "train.steps": 4} | default | layout
        trained(run, data, settings, *(["--resume"] if step > 1 else []), ranks=ranks)
        if step < 4:
            for later in range(step + 1, 5):
                shutil.rmtree(checkpoint(run, later))
    assert_same_training(run, alone)


def test_messages_between_the_first_and_the_last_rank(data: Path, tmp_path: Path) -> None:
    """For each micro-batch the embedded tokens and their gradient, besides those of each boundary."""
    for modules in (0, 2):
        settings = MODEL | {"model.num_nextn_predict_layers": modules, "parallel.pipeline": 3}
        run = trained(tmp_path / f"run{modules}", data, settings, ranks=3)
        boundary = 8 * 40 * (64 + 1) * 8  # fp64 hidden states and a top-k mass per token
        embedded = 8 * 40 * 64 * 8 if modules else 0
        sent = metrics(run)[0]["ranks"]["activations_mib"]
        assert sent * 2**20 == pytest.approx(2 * (2 * boundary + embedded), rel=1e-12)


def test_metrics(alone: Path) -> None:
    lines = metrics(alone)
    # Three MoE layers of the main model and two of the modules.
    assert all(len(values) == 5 for values in lines[0]["layers"].values())
    assert [value is None for value in lines[0]["layers"]["rho"]] == [True, False, True, False, False]
    for line in lines:
        aux = line["aux_losses"]
        total = line["lm_loss"] + 0.3 * line["mtp_loss"] + 5 * (1e-2 * aux["balance"] + 1e-3 * aux["z"])
        assert line["loss"] == pytest.approx(total + 1e-3 * aux["coupling"], rel=1e-12)
        assert line["mtp_loss"] == pytest.approx(math.log(512), rel=0.1)
    snapshot = json.loads((alone / "routing.jsonl").read_text().splitlines()[-1])
    assert np.sum(snapshot["expert_share"], axis=1) == pytest.approx([2] * 5)


def test_weight_of_the_loss(data: Path, tmp_path: Path) -> None:
    """Without weight the modules learn nothing from their loss, and the main model trains as without them."""
    settings = MODEL | {"router.balance": "none", "router.z_loss": 0, "router.coupling_loss": 0}
    settings |= {"optim.weight_decay": 0, "optim.clip_norm": 0, "router.bias_update_rate": 0}
    run = trained(tmp_path / "run", data, settings | {"train.mtp_loss": 0})
    without = trained(tmp_path / "without", data, settings | {"model.num_nextn_predict_layers": 0})
    found, main = weights(checkpoint(run, 4)), weights(checkpoint(without, 4))
    for name, values in main.items():
        assert np.array_equal(found[name], values), name
    assert np.array_equal(found["model.layers.4.enorm.weight"], np.ones(64, np.float32))
    assert all("mtp_loss" not in line for line in metrics(without))
    assert metrics(run)[-1]["loss"] == metrics(run)[-1]["lm_loss"]


def test_modules_learn(data: Path, tmp_path: Path) -> None:
    settings = MODEL | {"train.steps": 30, "optim.lr": 3e-3, "train.dtype": "bf16", "train.threads": 2}
    lines = metrics(trained(tmp_path / "run", data, settings))
    assert lines[-1]["mtp_loss"] < lines[0]["mtp_loss"] - 0.7


def test_resume_is_bitwise_equal(data: Path, tmp_path: Path) -> None:
    settings = MODEL | {"checkpoint.every": 2}
    whole = trained(tmp_path / "whole", data, settings)
    run = tmp_path / "run"
    trained(run, data, settings)
    shutil.rmtree(checkpoint(run, 4))
    trained(run, data, settings, "--resume")
    assert_same_outcome(run, whole, 4)
    assert folder_bytes(checkpoint(run, 4)) == folder_bytes(checkpoint(whole, 4))


def logits(folder: Path, work: Path) -> dict[str, torch.Tensor]:
    return program_logits(folder, [list(range(1, 33)), list(range(40, 72))], work, "--routing")


@pytest.mark.parametrize(("kind", "pipeline"), [("baseline", 1), ("hero", 1), ("hero", 2), ("rmoe", 1)])
def test_export_and_import(data: Path, tmp_path: Path, kind: str, pipeline: int) -> None:
    settings = MODEL | {"router.kind": kind, "train.dtype": "fp32", "model.max_position_embeddings": 64}
    settings |= {"parallel.pipeline": pipeline}
    run = trained(tmp_path / "run", data, settings, ranks=pipeline)
    exported, again = tmp_path / "exported", tmp_path / "again"
    run_hero("export", run, exported)
    config = json.loads((exported / "config.json").read_text())
    assert config["num_nextn_predict_layers"] == 2
    own, found = weights(checkpoint(run, 4)), weights(exported)
    for i in (4, 5):
        copies = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
        for copy, original in copies.items():
            values = found.pop(f"model.layers.{i}.{copy}.weight")
            assert np.array_equal(values, found[f"{original}.weight"])
        assert found[f"model.layers.{i}.eh_proj.weight"].shape == (64, 128)
    assert found.keys() == own.keys()
    assert all(np.array_equal(found[name], own[name]) for name in own)

    # The main model alone, in the program and in transformers.
    said = logits(exported, tmp_path)
    assert "router_logits.0.3" in said and "router_logits.0.4" not in said
    assert all(torch.equal(values, said[name]) for name, values in logits(run, tmp_path).items())
    torch.set_num_threads(1)
    model, report = AutoModelForCausalLM.from_pretrained(
        exported, trust_remote_code=True, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["mismatched_keys"]
    with torch.no_grad():
        expected = model(torch.tensor([list(range(1, 33)), list(range(40, 72))])).logits
    for n in range(2):
        assert_close(said[f"logits.{n}"], expected[n])

    # Exporting the folder restores the same tensors, and training starts from them.
    run_hero("export", exported, again)
    assert all(np.array_equal(values, weights(exported)[name]) for name, values in weights(again).items())
    still = {"train.steps": 2, "optim.lr": 1e-30, "optim.min_lr": 0}
    start = trained(tmp_path / "start", data, settings | still, "--init-from", exported, ranks=pipeline)
    for name, values in weights(checkpoint(start, 2)).items():
        if not name.endswith("e_score_correction_bias"):
            assert np.abs(values - own[name]).max() < 1e-20, name

    # transformers drops the modules but keeps the number in config.json.
    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    assert all(torch.equal(values, said[name]) for name, values in logits(saved, tmp_path).items())


def test_copies_of_embedding_and_head(data: Path, alone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    run_hero("export", alone, folder)
    name = "model.layers.5.shared_head.head.weight"
    tensors = weights(folder)
    changed = tensors | {name: tensors[name] * 2}
    save_file(changed, folder / "model.safetensors")
    assert_exit_2(
        hero("export", folder, tmp_path / "again"),
        f"{folder}: tensor {name} differs from lm_head.weight, expected a copy of it",
    )
    save_file(
        {k: v for k, v in tensors.items() if "embed_tokens" not in k[14:]}, folder / "model.safetensors"
    )
    run_hero("export", folder, tmp_path / "again")
    assert weights(tmp_path / "again").keys() == tensors.keys()
    missing = "model.layers.5.hnorm.weight"
    save_file({k: v for k, v in tensors.items() if k != missing}, folder / "model.safetensors")
    assert_exit_2(hero("export", folder, tmp_path / "other"), f"{folder}: no tensor {missing}")


def test_init_from_a_model_without_modules(data: Path, tmp_path: Path) -> None:
    """The main model is that of the source, and the modules are those of a new run with the same seed."""
    still = {"train.steps": 2, "optim.lr": 1e-30, "optim.min_lr": 0, "train.dtype": "fp32"}
    main = trained(tmp_path / "main", data, MODEL | {"model.num_nextn_predict_layers": 0, "train.steps": 2})
    new = trained(tmp_path / "new", data, MODEL | still)
    command = training(tmp_path / "run", data, MODEL | still, "--init-from", main)
    assert "found no multi-token prediction modules" in run_hero(*command).stderr
    found = weights(checkpoint(tmp_path / "run", 2))
    source, initial = weights(checkpoint(main, 2)), weights(checkpoint(new, 2))
    assert found.keys() == initial.keys()
    for name, values in found.items():
        expected = source.get(name, initial[name])
        if not name.endswith("e_score_correction_bias"):
            assert np.abs(values - expected.astype(np.float32)).max() < 1e-20, name


def test_init_from_another_number_of_modules(data: Path, alone: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        command = training(tmp_path / "run", data, MODEL | {"model.num_nextn_predict_layers": number})
        assert_exit_2(
            hero(*command, "--init-from", checkpoint(alone, 4)),
            f"model.num_nextn_predict_layers: 2 -> {number}",
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model.num_nextn_predict_layers": 40},
            "model.num_nextn_predict_layers: found 40, expected less than train.sequence = 40",
        ),
        (
            {"model.model_type": "mixtral", "model.num_nextn_predict_layers": 1},
            "model.num_nextn_predict_layers: found 1, expected 0; only model.model_type",
        ),
    ],
)
def test_errors(data: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    own = MODEL if "model.model_type" not in settings else {}
    assert_exit_2(hero(*training(tmp_path / "run", data, own | settings)), message)


def test_loss_weight_without_modules(data: Path, tmp_path: Path) -> None:
    done = run_hero(*training(tmp_path / "run", data, {"train.steps": 2, "train.mtp_loss": 0.5}))
    assert "train.mtp_loss = 0.5 has no effect: model.num_nextn_predict_layers = 0" in done.stderr
