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


def values(found: Transformers) -> dict[str, Tensor]:
    """All results of a pass by name; the weights of the selected experts as [T, E]."""
    out = {f"logits.{n}": logits for n, logits in enumerate(found.logits)}
    for layer, (logits, weights, ids) in enumerate(found.routed):
        out[f"router_logits.{layer + 1}"] = logits.detach()
        out[f"topk_weights.{layer + 1}"] = dense(logits, weights.detach(), ids)
    return out | {"loss": found.loss} | {f"grad.{name}": g for name, g in found.gradients.items()}


def dense(logits: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    return torch.zeros_like(logits, dtype=weights.dtype).scatter(-1, ids, weights)


def program_values(said: dict[str, Tensor], layers: int, sequences: int) -> dict[str, Tensor]:
    """The same from the program."""
    out = {name: t for name, t in said.items() if name.startswith(("logits.", "grad.")) or name == "loss"}
    for layer in range(layers):
        logits, weights, ids = (
            joined(said, key, layer, sequences) for key in ("router_logits", "topk_weights", "topk_ids")
        )
        out[f"router_logits.{layer + 1}"] = logits
        out[f"topk_weights.{layer + 1}"] = dense(logits, weights, ids.long())
    return out


def rounding_errors(model: PreTrainedModel, ids: Tensor, exact: Transformers) -> dict[str, float]:
    """The largest error of each result in eight passes of the fp32 model, each with other changes of the weights
    by at most 2^-24 of their values: what the order of the same operations may change."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    truths = values(exact)
    errors = dict.fromkeys(truths, 0.0)
    for _ in range(8):
        with torch.no_grad():
            for name, p in model.named_parameters():
                noise = 2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1
                p.copy_(weights[name] * (1 + 2**-24 * noise))
        sample = Transformers(model, ids)
        if all(torch.equal(sample.chosen(i), exact.chosen(i)) for i in range(len(exact.routed))):
            for name, t in values(sample).items():
                errors[name] = max(errors[name], largest(t.double() - truths[name].double()))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights[name])
    return errors


def largest(t: Tensor) -> float:
    return t.abs().max().item()


def compare(ours: dict[str, Tensor], model: PreTrainedModel, ids: Tensor, exact: Transformers) -> None:
    """Compares with `exact`, transformers in fp64. The error is at most LOGITS of the largest value or, if the
    model amplifies rounding, 4 times that of transformers in fp32 (`rounding_errors`)."""
    truths = values(exact)
    assert ours.keys() == truths.keys(), f"other names: {sorted(ours.keys() ^ truths.keys())}"
    # Sums that cancel, such as gradients of attention scores if one probability is nearly 1, leave rounding
    # errors of the summands: some multiples of 2^-24.
    rest = 2**-20 * max(largest(g) for g in exact.gradients.values())
    errors: dict[str, float] = {}
    for name, truth in truths.items():
        assert ours[name].shape == truth.shape, f"{name}: {ours[name].shape}, expected {truth.shape}"
        error = largest(ours[name].double() - truth.double())
        if error > max(LOGITS * largest(truth), rest if name.startswith("grad.") else 0.0):
            errors[name] = error
    if not errors:
        return
    others = rounding_errors(model, ids, exact)
    for name, error in errors.items():
        assert error <= 4 * others[name], (
            f"{name}: off by {error}, transformers in fp32 by {others[name]}, the greatest value is "
            f"{largest(truths[name])}"
        )


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
        equal = not other_choices(said, theirs, sequences) and not other_choices(said, exact, sequences)
        model.float()  # restores the fp32 weights
        if equal:
            break
    else:
        raise AssertionError("nearly tied scores in every sample of tokens")
    compare(program_values(said, len(exact.routed), sequences), model, ids, exact)

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
