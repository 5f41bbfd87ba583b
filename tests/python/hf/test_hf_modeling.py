"""Routers of HERO models in transformers against the equations and transformers' own models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import hero_moe
from hero_models import HERO, LAYERS, STAGES, D, E, hero_model, routed
from hero_moe import HistoryRouter
from hero_moe.hf.hero_router import HeroRouterSettings, HistoryReader, RoutingHistory
from hf_models import HERO as FAMILIES
from hf_models import PLAIN, configuration, gates, gradients, in_fp64, random_ids, random_model
from history_rounding import assert_rounded_once, exact_logits

VISIBLE = {
    "all": [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "last": [[], [1], [2], [3], [4]],
    "two": [[], [1], [1, 2], [2, 3], [3, 4]],
    "stages": [[], [1], [1, 2], [], [4]],
    "global": [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
    "global-two": [[], [1], [1, 2], [2, 3], [3, 4]],
    "unscaled": [[], [1], [1, 2], [], [4]],
    "deep": [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
}


def equation_logits(
    inputs: list[Tensor],
    weights: list[Tensor],
    visible: list[list[int]],
    eps: float = 1e-6,
    scale: bool = True,
) -> list[Tensor]:
    """Z of every layer from the paper's equations, token by token."""
    logits: list[Tensor] = []
    for layer, (x, weight, seen) in enumerate(zip(inputs, weights, visible, strict=True), 1):
        rows = []
        for t, token in enumerate(x):
            token, parts = token.double(), [token.double()]
            history = [torch.softmax(logits[j - 1][t], 0) for j in seen]
            if history:
                h = torch.cat(history)
                rho = (token.norm() / math.sqrt(D)) / (h.norm() / math.sqrt(len(h)) + eps)
                parts.append(h * (rho * math.sqrt((layer - 1) / len(seen)) if scale else 1))
            rows.append(weight.double() @ torch.cat(parts))
        logits.append(torch.stack(rows))
    return logits


@pytest.mark.parametrize("variant", HERO)
@pytest.mark.parametrize("family", FAMILIES)
def test_router_logits_follow_the_equations(family: str, variant: str) -> None:
    model = in_fp64(hero_model(family, HERO[variant]))
    inputs, outputs = routed(model, random_ids(model.config, (2, 7)))
    weights = [gate.weight.detach() for gate in gates(model)]
    assert [w.shape[1] for w in weights] == [D + len(seen) * E for seen in VISIBLE[variant]]
    options = {k: v for k, v in HERO[variant].items() if k in ("eps", "scale")}
    for (got, _, _), expected in zip(
        outputs, equation_logits(inputs, weights, VISIBLE[variant], **options), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_operands_and_fp32_logits(family: str, detach: bool) -> None:
    """The history is rounded to bf16 once, as in the trainer."""
    model = hero_model(family, {"detach": detach}).bfloat16()
    histories: list[RoutingHistory] = []
    gates(model)[0].register_forward_hook(lambda _, args, out: histories.append(args[1]))
    inputs, outputs = routed(model, random_ids(model.config, (2, 20)))
    probs = histories[0].probs
    for layer, (gate, x, (logits, _, _)) in enumerate(zip(gates(model), inputs, outputs, strict=True), 1):
        assert x.dtype == gate.weight.dtype == torch.bfloat16 and logits.dtype == torch.float32
        expected = exact_logits(x, gate.weight, [probs[j] for j in range(1, layer)], layer)
        torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
        assert probs[layer].dtype == (torch.bfloat16 if detach else torch.float32)
        assert_rounded_once(probs[layer], expected, torch.bfloat16)


@pytest.mark.parametrize("detach", [True, False])
def test_layer_matches_the_trainer(detach: bool) -> None:
    """With equal operands and history, the trainer's kernel, its differentiable form and this code agree."""
    torch.manual_seed(0)
    settings = HeroRouterSettings(detach=detach, stages=[0, 0])
    ours = [
        HistoryRouter(32, 16, layer=l, visible=range(1, l), detach=detach, dtype=torch.bfloat16)
        for l in (1, 2)
    ]
    history, said = RoutingHistory(), hero_moe.RoutingHistory()
    for layer, router in enumerate(ours, 1):
        x = torch.randn(40, 32).bfloat16()
        logits, _ = HistoryReader(settings, layer).logits(x, router.weight, history)
        expected, _ = router(x, said)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        exact = exact_logits(x, router.weight, [said[j] for j in router.visible], layer)
        for stored in (history.probs[layer], said[layer]):
            assert_rounded_once(stored, exact, torch.bfloat16)
        history.probs[layer] = said[layer]  # a value at a rounding boundary may differ


def test_autocast_keeps_the_router_in_fp32() -> None:
    model = hero_model("qwen3", {})
    with torch.autocast("cpu", torch.bfloat16):
        inputs, outputs = routed(model, random_ids(model.config, (2, 7)))
    expected = equation_logits(inputs, [gate.weight.detach() for gate in gates(model)], VISIBLE["all"])
    for (got, _, _), logits in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got.double(), logits, rtol=1e-5, atol=1e-5)


def chosen(scores: list[float], k: int, groups: int, kept: int) -> list[int]:
    """The k best experts in the `kept` groups with the largest sums of two best scores; ascending."""
    size = len(scores) // groups
    best = [sum(sorted(scores[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
    allowed = sorted(range(groups), key=lambda g: best[g])[-kept:]
    eligible = [e for e in range(len(scores)) if e // size in allowed]
    return sorted(sorted(eligible, key=lambda e: scores[e])[-k:])


@pytest.mark.parametrize("hero", [None, {}], ids=["baseline", "hero"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "raw"])
@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
def test_deepseek_expert_selection(
    scoring: str, groups: int, norm: bool, hero: dict[str, Any] | None
) -> None:
    kept = max(groups // 2, 1)
    options = {"scoring_func": scoring, "n_group": groups, "topk_group": kept, "norm_topk_prob": norm}
    model = in_fp64(hero_model("deepseek", hero, **options))
    _, outputs = routed(model, random_ids(model.config, (2, 7)))
    for gate, (logits, weights, ids) in zip(gates(model), outputs, strict=True):
        scores = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(-1)
        biased = scores + gate.e_score_correction_bias
        for row, eligible, w, i in zip(scores, biased.tolist(), weights, ids, strict=True):
            assert sorted(i.tolist()) == chosen(eligible, 2, groups, kept)
            expected = row[i] / row[i].sum() if norm else row[i]
            torch.testing.assert_close(w, 1.5 * expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-raw-weights", "qwen3-dense-layers", "qwen3-sparse-step",
                                  "deepseek", "deepseek-groups", "deepseek-raw-weights"])  # fmt: skip
def test_zero_history_weights_match_the_plain_model(name: str) -> None:
    """Bit-identical, with padding and gradients."""
    family = name.partition("-")[0]
    plain = random_model(PLAIN[family], configuration(name))
    hero = FAMILIES[family](configuration(name, hero_router={})).eval()
    state = {key: tensor for key, tensor in plain.state_dict().items() if tensor.numel()}
    for key, tensor in hero.state_dict().items():
        if tensor.shape != state[key].shape:
            state[key] = torch.cat([state[key], torch.zeros(E, tensor.shape[1] - D)], 1)
    hero.load_state_dict(state)
    assert hero.config._experts_implementation == plain.config._experts_implementation
    ids = random_ids(plain.config, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    got, expected = (m(ids, attention_mask=mask, labels=ids) for m in (hero, plain))
    assert torch.equal(got.logits, expected.logits) and torch.equal(got.loss, expected.loss)
    got.loss.backward()
    expected.loss.backward()
    gradients = dict(hero.named_parameters())
    for key, parameter in plain.named_parameters():
        if not parameter.numel():
            continue
        gradient = gradients[key].grad
        difference = (gradient[:, :D] if "gate.weight" in key else gradient) - parameter.grad
        assert difference.norm() <= 1e-5 * parameter.grad.norm(), key


@pytest.mark.parametrize("family", FAMILIES)
def test_initial_router_weights(family: str) -> None:
    torch.manual_seed(0)
    model = FAMILIES[family](configuration(family, num_hidden_layers=LAYERS + (family == "deepseek"),
                                           hero_router={"window": 2}))  # fmt: skip
    for layer, gate in enumerate(gates(model), 1):
        bound = 1 / math.sqrt(D + (layer - 1) * E)
        assert 0.97 * bound < gate.weight.abs().max() <= bound
        assert gate.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("detach", [True, False])
def test_gradient_of_the_history(detach: bool) -> None:
    """Detached: only W gets a gradient. Not detached: the full gradient, checked by finite differences."""
    settings = HeroRouterSettings(detach=detach, stages=[0, 0])
    first, second = HistoryReader(settings, 1), HistoryReader(settings, 2)
    torch.manual_seed(0)
    x1, x2 = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    w1 = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    w2 = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def logits(x1: Tensor, x2: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        history = RoutingHistory()
        first.logits(x1, w1, history)
        return second.logits(x2, w2, history)[0]

    if not detach:
        assert torch.autograd.gradcheck(logits, (x1, x2, w1, w2))
        return
    assert torch.autograd.gradcheck(lambda w: logits(x1, x2, w1, w), (w2,))
    upstream = torch.randn(3, 2, dtype=torch.float64)
    got = torch.autograd.grad(logits(x1, x2, w1, w2), (x1, x2, w1), upstream, allow_unused=True)
    to_x1, to_x2, to_w1 = got
    assert to_x1 is None and to_w1 is None
    torch.testing.assert_close(to_x2, upstream @ w2[:, :4].detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_both_parts_of_every_router(family: str) -> None:
    model = hero_model(family, {})
    gradients(model, random_ids(model.config, (2, 9)))
    for layer, gate in enumerate(gates(model), 1):
        parts = gate.weight.grad.split([D, *[E] * (layer - 1)], 1)
        assert all(part.norm() > 0 for part in parts)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing(family: str, detach: bool, reentrant: bool) -> None:
    model = hero_model(family, {"stages": STAGES, "history": "global", "window": 3, "detach": detach})
    ids = random_ids(model.config, (2, 9))
    expected = gradients(model, ids)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant and not detach:
        with pytest.raises(ValueError, match=r"hero_router\.detach: found false, expected true"):
            gradients(model, ids)
        return
    got = gradients(model, ids)
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []
