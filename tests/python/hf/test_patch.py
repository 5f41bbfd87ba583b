"""hero_moe.patch on small random models, against the unpatched models and the paper's equations."""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import hero_moe
from history_rounding import assert_rounded_once, exact_logits

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
E, D = 8, 32


def qwen() -> PreTrainedModel:
    experts = {"moe_intermediate_size": 16, "num_experts": E, "norm_topk_prob": True, "mlp_only_layers": [1]}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, head_dim=8))


def deepseek() -> PreTrainedModel:
    heads = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, **heads}
    groups = {"n_routed_experts": E, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
    experts = {"n_shared_experts": 1, "moe_intermediate_size": 16, **groups}
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, **latent, **experts))
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias.uniform_(-0.3, 0.3)
    return model


def mixtral() -> PreTrainedModel:
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=E))


def olmoe() -> PreTrainedModel:
    return OlmoeForCausalLM(OlmoeConfig(**SIZES, num_experts=E))


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{k: v for k, v in SIZES.items() if k != "num_experts_per_tok"}))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen": qwen, "deepseek": deepseek, "mixtral": mixtral, "olmoe": olmoe,
}  # fmt: skip


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(1)
    return FAMILIES[request.param]().eval()


def patched(model: PreTrainedModel, **options: Any) -> Any:
    torch.manual_seed(2)
    return hero_moe.patch(copy.deepcopy(model), **options)


def ids(seed: int = 3, length: int = 11) -> Tensor:
    return torch.randint(1, 64, (2, length), generator=torch.Generator().manual_seed(seed))


def gates(model: PreTrainedModel) -> list[Any]:
    return [m for m in model.modules() if type(m).__name__.startswith("History")]


def routed(model: PreTrainedModel, tokens: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """Input and results of every router in one pass."""
    seen: list[tuple[Tensor, tuple[Tensor, ...]]] = []
    hooks = [g.register_forward_hook(lambda _, x, y: seen.append((x[0], y))) for g in gates(model)]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_zero_history_weights_are_bit_identical(model: PreTrainedModel, dtype: torch.dtype) -> None:
    model.to(dtype)
    hero = patched(model)
    assert [g.weight.shape[1] for g in gates(hero)] == [D + m * E for m in range(len(gates(hero)))]
    for options in ({}, {"labels": ids()}, {"labels": ids(), "output_router_logits": True}):
        if "output_router_logits" in options and not hasattr(model, "router_aux_loss_coef"):
            continue
        plain, ours = model(ids(), **options), hero(ids(), **options)
        assert torch.equal(plain.logits, ours.logits)
        for name in ("loss", "aux_loss"):
            if plain.get(name) is not None:
                assert torch.equal(plain[name], ours[name])
        for a, b in zip(plain.get("router_logits") or (), ours.get("router_logits") or (), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        ({}, [(), (1,), (1, 2), (1, 2, 3)]),
        ({"window": 2, "scale": False}, [(), (1,), (1, 2), (2, 3)]),
        ({"stages": 2, "eps": 0.1}, [(), (1,), (), (3,)]),
        ({"stages": [0, 1, 1, 1], "detach": False}, [(), (), (2,), (2, 3)]),
        ({"stages": 4, "history": "global", "window": 1}, [(), (1,), (2,), (3,)]),
    ],
)
@pytest.mark.parametrize("family", ["qwen", "deepseek"])
def test_logits_follow_the_paper(
    family: str, options: dict[str, Any], visible: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(1)
    hero = patched(FAMILIES[family]().eval().double(), init="uniform", **options)
    hero.set_experts_implementation("eager")  # the default does not support fp64
    assert [g.visible for g in gates(hero)] == visible
    probs: dict[int, Tensor] = {}
    for l, (gate, (x, results)) in enumerate(zip(gates(hero), routed(hero, ids())), start=1):
        logits, weights, chosen = results
        x, w = x.reshape(-1, D), gate.weight.double()
        # DeepSeek's router computes the hidden state logits in fp32.
        z = (x.float() @ w[:, :D].float().t()).double() if family == "deepseek" else x @ w[:, :D].t()
        if visible[l - 1]:
            h = torch.cat([probs[j] for j in visible[l - 1]], 1)
            rho = x.square().mean(1).sqrt() / (h.square().mean(1).sqrt() + options.get("eps", 1e-6))
            rho = rho * math.sqrt((l - 1) / len(visible[l - 1]))
            rho = rho if options.get("scale", True) else torch.ones_like(rho)
            z = z + (rho[:, None] * h) @ w[:, D:].t()
        tolerance = 1e-5 if family == "deepseek" else 1e-11
        torch.testing.assert_close(logits.double(), z, rtol=0, atol=tolerance)
        probs[l] = logits.double().softmax(1)
        if family == "qwen":
            best = probs[l].topk(2)
            assert torch.equal(chosen, best.indices)
            shares = best.values / best.values.sum(1, keepdim=True)
            torch.testing.assert_close(weights, shares, rtol=0, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("detach", [True, False])
def test_bf16_history_matches_the_trainer(model: PreTrainedModel, detach: bool, autocast: bool) -> None:
    """The softmax of fp32 logits, rounded once, although most models round their own logits to bf16."""
    hero = patched(model if autocast else model.bfloat16(), init="uniform", detach=detach)
    passes: list[Any] = []
    hero.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["routing_history"]), with_kwargs=True
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        inputs = [x.reshape(-1, D).bfloat16() for x, _ in routed(hero, ids(length=20))]
    history = passes[0].history
    for l, (gate, x) in enumerate(zip(gates(hero), inputs, strict=True), start=1):
        exact = exact_logits(x, gate.weight.bfloat16(), [history[j] for j in gate.visible], l)
        assert history[l].dtype == (torch.bfloat16 if detach else torch.float32)
        assert_rounded_once(history[l], exact, torch.bfloat16)


def test_uniform_weights_follow_the_depth(model: PreTrainedModel) -> None:
    hero = patched(model, init="uniform", window=1)
    plain_gates = [m for m in model.modules() if hasattr(m, "top_k") and hasattr(m, "weight")]
    for l, (gate, plain) in enumerate(zip(gates(hero), plain_gates, strict=True), start=1):
        assert torch.equal(gate.weight[:, :D], plain.weight)
        if l > 1:
            bound = 1 / math.sqrt(D + (l - 1) * E)
            assert 0.8 * bound < gate.weight[:, D:].abs().max() <= bound


def test_generation_with_cache_equals_without(model: PreTrainedModel) -> None:
    hero = patched(model, init="uniform", window=2)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    cached, whole = (hero.generate(ids(), use_cache=use, **options) for use in (True, False))
    assert cached.shape == (2, 16) and torch.equal(cached, whole)
    assert not torch.equal(hero(ids()).logits, model(ids()).logits)


def gradients(
    model: PreTrainedModel, between: Callable[[], Any] = lambda: None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients, with `between` called after the forward pass."""
    model.zero_grad()
    loss = model(ids(), labels=ids()).loss
    between()
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(a: tuple[Tensor, dict[str, Tensor]], b: tuple[Tensor, dict[str, Tensor]]) -> bool:
    equal_gradients = a[1].keys() == b[1].keys() and all(torch.equal(a[1][n], b[1][n]) for n in a[1])
    return torch.equal(a[0], b[0]) and equal_gradients


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_equal_gradients(model: PreTrainedModel, reentrant: bool) -> None:
    hero = patched(model, init="uniform").train()
    expected = gradients(hero)
    assert all(g.abs().max() > 0 for n, g in expected[1].items() if n.endswith("gate.weight"))
    hero.activation_checkpointing_enable({"use_reentrant": reentrant})
    # A pass between forward and backward, or a backward pass in another thread, has no effect.
    assert same(gradients(hero, between=lambda: hero(ids(seed=9, length=4))), expected)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(gradients(hero)))
    thread.start()
    thread.join()
    assert same(results[0], expected)


def test_gradient_through_the_history_survives_checkpointing() -> None:
    torch.manual_seed(1)
    hero = patched(qwen(), init="uniform", detach=False).train()
    expected = gradients(hero)
    hero.activation_checkpointing_enable({"use_reentrant": False})
    assert same(gradients(hero), expected)
    detached = patched(qwen(), init="uniform").train()
    detached.load_state_dict(hero.state_dict())
    other = gradients(detached)
    assert torch.equal(other[0], expected[0]) and not same(other, expected)
    hero.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(RuntimeError, match="use_reentrant"):
        gradients(hero)


def test_threads_have_separate_histories() -> None:
    torch.manual_seed(1)
    hero = patched(qwen().eval(), init="uniform")
    expected = [hero(ids(seed, length)).logits for seed, length in ((1, 7), (2, 9), (3, 5), (4, 12))]
    wrong: list[int] = []

    def repeat(i: int, tokens: Tensor) -> None:
        if not all(torch.equal(hero(tokens).logits, expected[i]) for _ in range(8)):
            wrong.append(i)

    inputs = (ids(1, 7), ids(2, 9), ids(3, 5), ids(4, 12))
    threads = [threading.Thread(target=repeat, args=pair) for pair in enumerate(inputs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_hooks_that_move_arguments_keep_the_history(model: PreTrainedModel) -> None:
    hero = patched(model, init="uniform")
    expected = hero(ids()).logits
    for layer in hero.base_model.layers:
        add_hook_to_module(layer, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    assert torch.equal(hero(ids()).logits, expected)


def test_saved_folder_contains_settings_and_weights(model: PreTrainedModel, tmp_path: Path) -> None:
    hero = patched(model, init="uniform", stages=2)
    hero.save_pretrained(tmp_path)
    layers = len(gates(hero))
    assert json.loads((tmp_path / "config.json").read_text())["hero_router"] == {
        "window": None, "scale": True, "eps": 1e-6, "detach": True, "history": "stage",
        "stages": {4: [0, 0, 1, 1], 5: [0, 0, 0, 1, 1]}[layers],
    }  # fmt: skip
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = [n for n in file.keys() if n.endswith("gate.weight")]
        saved = {n: file.get_tensor(n) for n in names}
    assert len(saved) == layers
    for gate, name in zip(gates(hero), sorted(names)):
        assert torch.equal(saved[name], gate.weight)
    again = patched(type(model)(model.config), stages=2)
    again.load_state_dict(hero.state_dict())
    assert torch.equal(again.eval()(ids()).logits, hero(ids()).logits)


def test_model_without_head() -> None:
    torch.manual_seed(1)
    whole = qwen().eval()
    hero, base = patched(whole, init="uniform"), patched(whole.model, init="uniform")
    hidden = base(ids()).last_hidden_state
    assert torch.equal(whole.lm_head(hidden), hero(ids()).logits)


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen", "deepseek"])
def test_inductor_compiles_the_whole_model(family: str) -> None:
    torch.manual_seed(1)
    hero = patched(FAMILIES[family]().train(), init="uniform")
    expected = gradients(hero)
    compiled = torch.compile(hero, fullgraph=True)
    hero.zero_grad()
    loss = compiled(ids(), labels=ids()).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected[0], rtol=0, atol=5e-6)
    for name, parameter in hero.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[1][name], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (llama, {}, "expected a Qwen3-MoE, DeepSeek-V3, Mixtral or OLMoE model"),
        (lambda: nn.Linear(2, 2), {}, "found Linear"),
        (lambda: hero_moe.patch(qwen()), {}, "already patched"),
        (qwen, {"init": "ones"}, "init: found 'ones'"),
        (qwen, {"history": "all"}, "history: found 'all'"),
        (qwen, {"window": 0}, "window: found 0"),
        (qwen, {"eps": -1.0}, "eps: found -1.0"),
        (qwen, {"stages": "ab"}, "stages: found 'ab'"),
        (qwen, {"stages": None}, "stages: found None"),
        (qwen, {"stages": 5}, "stages: found 5, expected 1 to 4"),
        (qwen, {"stages": [0, 1, 0, 1]}, r"stages: found \[0, 1, 0, 1\]"),
        (qwen, {"stages": [0, 0, 0]}, "each of 4 MoE layers"),
    ],
)
def test_rejects_unsupported_models_and_options(
    make: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    model = make()
    before = {n: p.shape for n, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message):
        hero_moe.patch(model, **options)
    assert {n: p.shape for n, p in model.named_parameters()} == before


def test_single_layer_raises_without_history() -> None:
    hero = patched(qwen())
    with pytest.raises(RuntimeError, match="call the whole model"):
        gates(hero)[0](torch.zeros(3, D))
