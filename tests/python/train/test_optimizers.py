"""Muon against torch.optim.Muon, its state in checkpoints, and the norms that train.norms_every logs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from program import checkpoint, metrics, run_hero, tensor_bytes, training
from ranks import run_ranks_checked

LAYERS, HIDDEN, STEPS = 3, 64, 4
MOMENTUM, ROUTER_LR, HISTORY_LR, WEIGHT_DECAY, HISTORY_DECAY = 0.5, 0.5, 2.0, 0.1, 0.3
SETTINGS = {
    "router.kind": "hero",
    "train.dtype": "fp32",
    "train.steps": STEPS,
    "checkpoint.every": 1,
    "optim.kind": "muon",
    "optim.muon_momentum": MOMENTUM,
    "optim.muon_router": True,
    "optim.router_lr": ROUTER_LR,
    "optim.history_lr": HISTORY_LR,
    "optim.weight_decay": WEIGHT_DECAY,
    "optim.history_weight_decay": HISTORY_DECAY,
}
PLAIN = {"HERO_PLAIN": "1"}


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the operators' reference implementations: torch's products of bf16 matrices, whose rounding Muon
    amplifies if a gradient has a low rank."""
    folder = tmp_path_factory.mktemp("muon") / "run"
    run_hero(*training(folder, data, SETTINGS | {"train.norms_every": 2}), variables=PLAIN)
    return folder


def is_hidden(name: str) -> bool:
    return "layers" in name and "norm" not in name


def matrices(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The matrices that Muon updates, with the factor of the learning rate and the weight decay as key."""
    if "mlp.gate" not in name:
        return {"1 0.1": weight}
    w_o, w_r = weight[:, :HIDDEN], weight[:, HIDDEN:]
    return {f"{ROUTER_LR} {WEIGHT_DECAY}": w_o} | (
        {f"{HISTORY_LR} {HISTORY_DECAY}": w_r} if w_r.numel() else {}
    )


def clipped_gradients(run: Path, step: int, folder: Path) -> dict[str, torch.Tensor]:
    """Of the step after `step`, to the last bit: without momentum, Muon's buffer is the gradient. (A gradient
    calculated from two buffers has rounding errors of its own, which Newton-Schulz amplifies.)"""
    changes = [f"--train.steps={step + 1}", "--optim.muon_momentum=0"]
    run_hero("train", "--branch", f"{run}@{step}", "--run", folder, *changes, variables=PLAIN)
    return load_file(checkpoint(folder, step + 1) / "optimizer.safetensors")


def test_updates_are_those_of_torch(run: Path, tmp_path: Path) -> None:
    model = [load_file(checkpoint(run, step) / "model.safetensors") for step in range(1, STEPS + 1)]
    state = [load_file(checkpoint(run, step) / "optimizer.safetensors") for step in range(1, STEPS + 1)]
    names = [name for name in model[0] if is_hidden(name)]
    assert len(names) == LAYERS * (4 + 1 + 8 * 3)
    for step in range(1, STEPS):
        rate = metrics(run)[step]["lr"]
        gradients = clipped_gradients(run, step, tmp_path / f"step{step}")
        for name in names:
            before = matrices(name, state[step - 1][f"exp_avg.{name}"])
            gradient = matrices(name, gradients[f"exp_avg.{name}"])
            buffers = matrices(name, state[step][f"exp_avg.{name}"])
            wanted = matrices(name, model[step][name])
            for key, values in matrices(name, model[step - 1][name]).items():
                factor, decay = map(float, key.split())
                weight = torch.nn.Parameter(values.clone())
                muon = torch.optim.Muon(
                    [weight],
                    lr=rate * factor,
                    weight_decay=decay,
                    momentum=MOMENTUM,
                    adjust_lr_fn="match_rms_adamw",
                )
                muon.state[weight]["momentum_buffer"] = before[key].clone()
                weight.grad = gradient[key].clone()
                muon.step()
                buffer = muon.state[weight]["momentum_buffer"]
                torch.testing.assert_close(buffer, buffers[key], rtol=1e-6, atol=1e-12, msg=name)
                torch.testing.assert_close(weight.detach(), wanted[key], rtol=0, atol=1e-6, msg=name)
                assert (wanted[key] - values).abs().max() > 1e-5


def test_muon_has_one_moment(run: Path) -> None:
    model = load_file(checkpoint(run, 1) / "model.safetensors")
    state = load_file(checkpoint(run, 1) / "optimizer.safetensors")
    second = {name.removeprefix("exp_avg_sq.") for name in state if name.startswith("exp_avg_sq.")}
    assert second == {name for name in model if not is_hidden(name)}
    assert len(state) == len(model) + len(second)


def test_norms(run: Path, data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0})
    board.Reload()
    lines = metrics(run)
    assert ["norms" in line for line in lines] == [False, True] * (STEPS // 2)
    for line in lines[1::2]:
        norms = line["norms"]
        assert list(norms) == [
            *("grad_norm", "update_ratio", "weight_rms"),
            *("max_attention_logit", "max_router_logit"),
        ]
        per_layer = ["attention", "experts", "w_o", "w_r", "norm"]
        for metric in ("grad_norm", "update_ratio", "weight_rms"):
            values = norms[metric]
            assert list(values) == [
                *("embedding", "attention", "mlp", "experts", "w_o", "w_r", "norm", "final_norm", "head")
            ]
            assert values["mlp"] == [None] * LAYERS and values["w_r"][0] is None
            assert all(len(values[key]) == LAYERS for key in per_layer)
        squares = [
            value**2
            for values in norms["grad_norm"].values()
            for value in (values if isinstance(values, list) else [values])
            if value is not None
        ]
        assert math.sqrt(sum(squares)) == pytest.approx(line["grad_norm"], rel=1e-6)
        found = {(e.step, e.value) for e in board.Scalars("norms_update_ratio_w_r/1")}
        assert any(
            step == line["step"] and value == pytest.approx(norms["update_ratio"]["w_r"][1], rel=1e-6)
            for step, value in found
        )
    tags = board.Tags()["scalars"]
    assert {"norms/weight_rms_head", "norms_max_attention_logit/0", "norms_max_router_logit/2"} <= set(tags)
    # They change nothing else.
    run_hero(*training(tmp_path / "without", data, SETTINGS), variables=PLAIN)
    assert tensor_bytes(run, STEPS) == tensor_bytes(tmp_path / "without", STEPS)
    assert "norms" not in metrics(tmp_path / "without")[1]


def test_bf16_on_two_ranks(data: Path, tmp_path: Path) -> None:
    """Weights that other ranks own arrive in bf16: the loss stays that of one process up to rounding."""
    settings = SETTINGS | {"train.dtype": "bf16", "train.global_batch": 4}
    run_hero(*training(tmp_path / "one", data, settings))
    run_ranks_checked(
        training(tmp_path / "two", data, settings | {"parallel.expert": 2}), 2, tmp_path / "log"
    )
    losses = [[line["lm_loss"] for line in metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
