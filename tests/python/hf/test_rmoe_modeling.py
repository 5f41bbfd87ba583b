"""RMoE models in transformers against the equations of arXiv 2408.06793, computed token by token."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

import hero_moe.hf
from hero_moe.hf.rmoe_router import RoutingHistory
from hf_models import (
    RMOE,
    configuration,
    gates,
    gradients,
    in_fp64,
    random_ids,
    random_model,
    read_config,
)

LAYERS, D, E, P = 5, 32, 8, 6
STAGES = {"one-stage": [0] * LAYERS, "two-stages": [0, 0, 1, 1, 1]}
FILES = Path(hero_moe.hf.__file__).parent


def rmoe_model(family: str, rmoe: Any, **more: Any) -> PreTrainedModel:
    """A random model with LAYERS MoE layers; the DeepSeek model has a dense layer before them."""
    layers = LAYERS + (family == "deepseek")
    return random_model(
        RMOE[family], configuration(family, num_hidden_layers=layers, rmoe_router=rmoe, **more)
    )


def routed(model: PreTrainedModel, ids: Tensor) -> tuple[list[tuple[Tensor, Tensor]], RoutingHistory]:
    """Each router's input [T, D] and logits [T, E], and the history, of one forward call."""
    seen, histories = [], []

    def keep(_: Any, args: tuple[Any, ...], out: tuple[Tensor, ...]) -> None:
        seen.append((args[0].detach(), out[0].detach()))
        histories.append(args[1])

    hooks = [gate.register_forward_hook(keep) for gate in gates(model)]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return seen, histories[0]


def equation_state(x: Tensor, previous: Tensor, projection: Tensor, gru: dict[str, Tensor]) -> Tensor:
    """h [P] of one token from its hidden state x [D] and the state of the preceding layer."""
    from_x = gru["weight_ih"] @ (projection @ x) + gru["bias_ih"]
    from_h = gru["weight_hh"] @ previous + gru["bias_hh"]
    size = len(previous)
    r = 1 / (1 + torch.exp(-(from_x[:size] + from_h[:size])))
    z = 1 / (1 + torch.exp(-(from_x[size : 2 * size] + from_h[size : 2 * size])))
    n = torch.tanh(from_x[2 * size :] + r * from_h[2 * size :])
    return (1 - z) * n + z * previous


def use_equations(model: PreTrainedModel, stages: list[int], detach: bool) -> None:
    """Replaces the computation of the router logits of an fp64 model; weights and selection stay."""
    grus: dict[int, dict[str, Tensor]] = {}
    for gate, stage in zip(gates(model), stages, strict=True):
        if stage not in grus:
            grus[stage] = dict(gate.gru.named_parameters())
    states: dict[int, list[Tensor]] = {}

    def replace(layer: int, gate: torch.nn.Module) -> None:
        first = layer == 0 or stages[layer] != stages[layer - 1]

        def router_logits(x: Tensor, _: Any) -> tuple[Tensor, Tensor]:
            before = [x.new_zeros(P)] * len(x) if first else states[layer - 1]
            new = [
                equation_state(*pair, gate.projection.weight, grus[stages[layer]]) for pair in zip(x, before)
            ]
            states[layer] = [h.detach() if detach else h for h in new]
            logits = torch.stack([gate.weight @ h for h in new])
            return logits, logits.softmax(-1)

        gate.router_logits = router_logits

    for layer, gate in enumerate(gates(model)):
        replace(layer, gate)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("family", ["qwen3", "deepseek", "deepseek-softmax"])
def test_logits_and_gradients_follow_the_equations(family: str, stages: str, detach: bool) -> None:
    family, _, scoring = family.partition("-")
    more = {"scoring_func": scoring} if scoring else {}
    rmoe = {"state_size": P, "stages": STAGES[stages], "detach": detach}
    model, plain = (in_fp64(rmoe_model(family, rmoe, **more)) for _ in range(2))
    use_equations(plain, STAGES[stages], detach)
    ids = random_ids(model.config, (2, 7))
    close: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, **close)
    got, expected = gradients(model, ids), gradients(plain, ids)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, **close, msg=lambda text, n=name: f"{n}: {text}")
        assert gradient.norm() > 0


@pytest.mark.parametrize("stages", STAGES)
def test_names_and_shapes_of_the_weights(stages: str) -> None:
    model = rmoe_model("qwen3", {"state_size": P, "stages": STAGES[stages]})
    expected: dict[str, tuple[int, ...]] = {}
    for i, stage in enumerate(STAGES[stages]):
        gate = f"model.layers.{i}.mlp.gate"
        expected |= {f"{gate}.weight": (E, P), f"{gate}.projection.weight": (P, D)}
        if i == STAGES[stages].index(stage):
            expected |= {f"{gate}.gru.weight_{part}": (3 * P, P) for part in ("ih", "hh")}
            expected |= {f"{gate}.gru.bias_{part}": (3 * P,) for part in ("ih", "hh")}
    assert {name: tuple(t.shape) for name, t in model.state_dict().items() if ".gate." in name} == expected


@pytest.mark.parametrize("family", RMOE)
def test_initial_weights(family: str) -> None:
    torch.manual_seed(0)
    layers = LAYERS + (family == "deepseek")
    rmoe = {"state_size": 50, "stages": STAGES["two-stages"]}
    model = RMOE[family](configuration(family, num_hidden_layers=layers, rmoe_router=rmoe))
    for gate in gates(model):
        for name, weight in gate.named_parameters():
            bound = 1 / math.sqrt(D if name == "projection.weight" else 50)
            assert 0.95 * bound < weight.abs().max() <= bound
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("family", RMOE)
def test_bf16_operands_fp32_computation_and_rounded_states(family: str, detach: bool, autocast: bool) -> None:
    """A layer computes its logits from the exact state; the next layer reads it rounded to bf16."""
    stages = STAGES["two-stages"]
    model = rmoe_model(family, {"state_size": P, "stages": stages, "detach": detach}).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        seen, history = routed(model, random_ids(model.config, (2, 20)))
    gru: dict[str, Tensor] = {}
    for layer, (gate, (x, logits)) in enumerate(zip(gates(model), seen, strict=True), 1):
        assert x.dtype == gate.weight.dtype == torch.bfloat16 and logits.dtype == torch.float32
        if first := layer == stages.index(stages[layer - 1]) + 1:
            gru = {name: t.detach().double() for name, t in gate.gru.named_parameters()}
        weight, projection = (w.detach().double() for w in (gate.weight, gate.projection.weight))
        before = torch.zeros(len(x), P) if first else history.states[layer - 1]
        exact = torch.stack(
            [equation_state(a.double(), b.double(), projection, gru) for a, b in zip(x, before)]
        )
        torch.testing.assert_close(logits.double(), exact @ weight.t(), rtol=1e-5, atol=1e-6)
        stored = history.states[layer]
        assert stored.dtype == (torch.bfloat16 if detach else torch.float32)
        assert torch.equal(stored, stored.bfloat16().to(stored.dtype))
        # A state within fp32 error of a rounding boundary may be rounded either way.
        low, high = ((exact + off).bfloat16() for off in (-1e-6, 1e-6))
        assert ((low <= stored) & (stored <= high)).all()


def test_rounding_does_not_change_the_gradient() -> None:
    """Straight-through: the stored state is rounded, its gradient is that of the exact state."""
    gate = gates(rmoe_model("qwen3", {"state_size": P, "detach": False}).bfloat16())[0]
    x = torch.randn(9, D, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    history, upstream = RoutingHistory(), torch.randn(9, P)
    gate.router_logits(x, history)
    exact = gate.gru(gate.projection(x.float()), torch.zeros(9, P))
    assert torch.equal(history.states[1], exact.bfloat16().float()) and not torch.equal(
        history.states[1], exact
    )
    got, expected = (torch.autograd.grad(h, x, upstream)[0] for h in (history.states[1], exact))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("family", RMOE)
def test_gradient_checkpointing(family: str, detach: bool, reentrant: bool) -> None:
    model = rmoe_model(family, {"state_size": P, "stages": STAGES["two-stages"], "detach": detach})
    ids = random_ids(model.config, (2, 9))
    expected = gradients(model, ids)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant and not detach:
        with pytest.raises(ValueError, match=r"rmoe_router\.detach: found false, expected true"):
            gradients(model, ids)
        return
    got = gradients(model, ids)
    # The gradients of a GRU may add up in another order.
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-5, atol=1e-7 if "gru" in name else 0)


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("family", RMOE)
def test_generation_with_and_without_cache(family: str, stages: str) -> None:
    model = rmoe_model(family, {"state_size": P, "stages": STAGES[stages]})
    ids = random_ids(model.config, (2, 6))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    cached, whole = (model.generate(ids, use_cache=cache, **options) for cache in (True, False))
    assert cached.shape == (2, 26) and torch.equal(cached, whole)


@pytest.mark.parametrize("family", RMOE)
def test_saved_models_load_again(family: str, tmp_path: Path) -> None:
    """Bit-identical, also layers offloaded to disk, whose weights exist only during their own calls."""
    rmoe = {"state_size": P, "stages": STAGES["two-stages"], "detach": False}
    model = rmoe_model(family, rmoe)
    model.save_pretrained(tmp_path)
    module = f"modeling_rmoe_{model.config.model_type}"
    config = read_config(tmp_path)
    assert config["rmoe_router"] == rmoe and config["architectures"] == [RMOE[family].__name__]
    assert config["auto_map"] == {"AutoModelForCausalLM": f"{module}.{RMOE[family].__name__}"}
    files = {file.name: file.read_bytes() for file in tmp_path.glob("*.py")}
    assert files == {name: (FILES / name).read_bytes() for name in (f"{module}.py", "rmoe_router.py")}
    block, down = ("block_sparse_moe", "w2") if family == "mixtral" else ("mlp", "down_proj")
    assert f"model.layers.1.{block}.experts.7.{down}.weight" in load_file(tmp_path / "model.safetensors")

    ids = random_ids(model.config, (2, 9))
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{i}": ("disk", "cpu")[i % 2] for i in range(model.config.num_hidden_layers)}
    for options in ({}, {"device_map": places, "offload_folder": tmp_path / "offload"}):
        opened = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, **options)
        assert type(opened).__name__ == RMOE[family].__name__ and type(opened) is not RMOE[family]
        with torch.no_grad():
            assert torch.equal(opened(ids).logits, model(ids).logits)
    config["auto_map"]["AutoModel"] = config["auto_map"]["AutoModelForCausalLM"].replace(
        "ForCausalLM", "Model"
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    base = AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    state = model.state_dict()
    assert all(torch.equal(t, state["model." + name]) for name, t in base.state_dict().items())


@pytest.mark.parametrize("family", RMOE)
def test_compiles_to_one_graph(family: str) -> None:
    """`torch.compile` has no graph breaks."""
    model = rmoe_model(family, {"state_size": P})
    model.set_experts_implementation("batched_mm")
    ids = random_ids(model.config, (2, 9))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        got = torch.compile(model, backend="eager", fullgraph=True)(ids, use_cache=False).logits
    assert torch.equal(got, expected)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "deepseek_v3", "olmoe", "mixtral"])
def test_modeling_files_differ_in_the_kind_only(model_type: str) -> None:
    """After a change: sed 's/hero/rmoe/g; s/Hero/Rmoe/g' modeling_hero_X.py > modeling_rmoe_X.py"""
    hero, rmoe = ((FILES / f"modeling_{kind}_{model_type}.py").read_text() for kind in ("hero", "rmoe"))
    assert hero.replace("hero", "rmoe").replace("Hero", "Rmoe") == rmoe


@pytest.mark.parametrize(
    ("rmoe", "message"),
    [
        (None, "rmoe_router: found None, expected an object with keys of ['detach', 'stages', 'state_size']"),
        ([], "rmoe_router: found [], expected an object"),
        ({"state_size": 4, "window": 2}, "expected an object with keys of"),
        ({}, "rmoe_router.state_size: found None, expected an integer of at least 1"),
        ({"state_size": 0}, "rmoe_router.state_size: found 0"),
        ({"state_size": True}, "rmoe_router.state_size: found True"),
        ({"state_size": 4, "detach": 1}, "rmoe_router.detach: found 1, expected true or false"),
        ({"state_size": 4, "stages": [0, 0]}, "rmoe_router.stages: found [0, 0], expected an integer for"),
        ({"state_size": 4, "stages": 2}, "rmoe_router.stages: found 2, expected"),
        ({"state_size": 4, "stages": [0, 1, 0, 1, 1]}, "of the 5 MoE layers, in ascending order"),
    ],
)
def test_rejects_invalid_settings(rmoe: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        rmoe_model("qwen3", rmoe)
    assert message in str(error.value)
