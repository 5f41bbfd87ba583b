"""Random models, program -> transformers -> program: equal logits, routing and gradients at every step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from hf_compare import (
    LOGITS,
    checkpoint_tensors,
    load_strict,
    module_prefixes,
    not_empty,
    program_logits,
    selection,
)
from program import hero, toml, write_megatron
from random_cases import Case, expect_success, property_tests, reproduce
from strategies import models, routers

TIES = 2e-6  # expert scores with a smaller difference may be ordered either way in fp32

# Training that moves every weight far from its initial value.
TRAINING = {
    "train.dtype": "fp32",
    "train.device": "cpu",
    "train.threads": 1,
    "train.steps": 3,
    "train.sequence": 12,
    "train.micro_batch": 2,
    "train.global_batch": 2,
    "optim.lr": 0.03,
    "optim.warmup_steps": 0,
    "checkpoint.every": 0,
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(models())
    model["model.norm_topk_eps"] = 1e-20  # config.json has no key for others
    router = draw(routers(model))
    seed = draw(st.integers(0, 2**32))
    length = draw(st.integers(2, model["model.max_position_embeddings"]))
    return {
        "options": model | router | {"train.seed": seed},
        "sequences": draw(st.integers(1, 3)),
        "length": length,
    }


def trained(options: dict[str, Any], folder: Path) -> Path:
    """A run of some steps on random tokens."""
    tokens = np.random.default_rng(options["train.seed"]).integers(0, options["model.vocab_size"], 200)
    for part in ("train", "valid"):
        write_megatron(folder / f"data-{part}", [tokens.tolist()])
    settings = folder / "run.toml"
    settings.write_text(toml(options | TRAINING))
    result = hero("train", "--config", settings, "--data", folder / "data", "--run", folder / "run")
    expect_success(result.returncode, result.stderr, options)
    return folder / "run"


class Transformers:
    """Results and gradients of one pass of a transformers model."""

    def __init__(self, model: PreTrainedModel, ids: Tensor) -> None:
        self.gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
        self.routed: list[tuple[Tensor, Tensor, Tensor]] = []
        hooks = [g.register_forward_hook(lambda _, args, out: self.routed.append(out)) for g in self.gates]
        model.zero_grad()
        out = model(ids, labels=ids)
        out.loss.backward()
        for hook in hooks:
            hook.remove()
        self.loss, self.logits = out.loss.detach(), out.logits.detach()
        self.gradients: dict[str, Tensor] = {}
        for name, p in model.named_parameters():
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            self.gradients |= checkpoint_tensors(name, gradient, model.config.model_type)
        self.gradients = not_empty(self.gradients)

    def chosen(self, layer: int) -> Tensor:
        logits, _, ids = self.routed[layer]
        return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ids, True)

    def leads(self, layer: int) -> Tensor:
        return selection(self.gates[layer], self.routed[layer][0].detach())[1]


def joined(said: dict[str, Tensor], key: str, layer: int, sequences: int) -> Tensor:
    return torch.cat([said[f"{key}.{n}.{layer + 1}"] for n in range(sequences)])


def other_choices(said: dict[str, Tensor], theirs: Transformers, sequences: int) -> bool:
    """Whether any token has different experts; in the first such layer, its scores must be nearly tied."""
    for layer, (logits, _, _) in enumerate(theirs.routed):
        ids = joined(said, "topk_ids", layer, sequences).long()
        got = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ids, True)
        differ = (got != theirs.chosen(layer)).any(-1)
        if differ.any():
            lead = theirs.leads(layer)[differ].max().item()
            assert lead <= TIES, f"layer {layer + 1}: other experts, though the scores are {lead} apart"
            return True
    return False


def compare(said: dict[str, Tensor], theirs: Transformers, exact: Transformers, sequences: int) -> None:
    """Compares with transformers in fp64. The error is at most LOGITS of the largest value, or 1.5 times the
    error of transformers' own fp32 if the model amplifies rounding."""
    named: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for n in range(sequences):
        named[f"logits.{n}"] = (said[f"logits.{n}"], theirs.logits[n], exact.logits[n])
    for layer, routed in enumerate(zip(theirs.routed, exact.routed, strict=True)):
        logits = [joined(said, "router_logits", layer, sequences), *(r[0] for r in routed)]
        ids = [joined(said, "topk_ids", layer, sequences).long(), *(r[2] for r in routed)]
        weights = [joined(said, "topk_weights", layer, sequences), *(r[1] for r in routed)]
        dense = [
            torch.zeros_like(z, dtype=w.dtype).scatter(-1, i, w) for z, i, w in zip(logits, ids, weights)
        ]
        named[f"router_logits.{layer + 1}"] = (logits[0], logits[1], logits[2])
        named[f"topk_weights.{layer + 1}"] = (dense[0], dense[1], dense[2])
    named["loss"] = (said["loss"], theirs.loss, exact.loss)
    got = {key.removeprefix("grad."): t for key, t in said.items() if key.startswith("grad.")}
    assert got.keys() == theirs.gradients.keys(), f"gradients: {sorted(got.keys() ^ theirs.gradients.keys())}"
    for name, gradient in got.items():
        named[f"grad.{name}"] = (gradient, theirs.gradients[name], exact.gradients[name])
    # Sums that cancel, such as gradients of attention scores if one probability is nearly 1, leave rounding
    # errors of the summands: some multiples of 2^-24.
    rest = 2**-20 * max(g.abs().max().item() for g in exact.gradients.values())
    for name, (ours, other, truth) in named.items():
        assert ours.shape == truth.shape, f"{name}: {ours.shape}, expected {truth.shape}"
        error, own = ((x.double() - truth.double()).abs().max().item() for x in (ours, other))
        size = truth.abs().max().item()
        most = max(LOGITS * size, 1.5 * own, rest if name.startswith("grad.") else 0.0)
        assert error <= most, f"{name}: off by {error}, transformers by {own}, the greatest value is {size}"


def equal_tensors(what: str, a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys(), f"{what}: other names: {sorted(a.keys() ^ b.keys())}"
    differ = [key for key, t in a.items() if not torch.equal(t, b[key])]
    assert not differ, f"{what}: other values: {differ}"


def round_trip(case: Case, work: Path) -> None:
    torch.set_num_threads(1)
    options, sequences = case["options"], case["sequences"]
    run = trained(options, work)
    exported, saved = work / "exported", work / "saved"
    result = hero("export", run, exported)
    expect_success(result.returncode, result.stderr, options)
    model = load_strict(exported)
    model.set_experts_implementation("eager")  # the default needs sizes that are multiples of 4
    rng = random.Random(options["train.seed"])
    for _ in range(8):
        ids = torch.tensor(
            [
                [rng.randrange(options["model.vocab_size"]) for _ in range(case["length"])]
                for _ in range(sequences)
            ]
        )
        said = program_logits(exported, ids.tolist(), work, "--routing", "--gradients")
        theirs = Transformers(model, ids)
        exact = Transformers(model.double(), ids)
        model.float()  # restores the fp32 weights
        if not other_choices(said, theirs, sequences) and not other_choices(said, exact, sequences):
            break
    else:
        raise AssertionError("nearly tied scores in every sample of tokens")
    compare(said, theirs, exact, sequences)

    model.save_pretrained(saved)
    before, after = (not_empty(load_file(folder / "model.safetensors")) for folder in (exported, saved))
    modules = module_prefixes(model.config)
    equal_tensors("saved weights", after, {k: t for k, t in before.items() if not k.startswith(modules)})
    again = program_logits(saved, ids.tolist(), work, "--routing", "--gradients")
    equal_tensors("the saved folder", again, said)
    if options["router.eval_capacity_factor"] == 0:  # else experts of the checkpoint drop tokens
        forward = {key: t for key, t in said.items() if "." in key and not key.startswith("grad.")}
        equal_tensors("the checkpoint", program_logits(run, ids.tolist(), work, "--routing"), forward)


test_fixed_cases, test_fresh_cases = property_tests(round_trip, cases())

if __name__ == "__main__":
    reproduce(round_trip)
