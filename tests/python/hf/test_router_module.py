"""hero_moe.HistoryRouter, RoutingHistory and sparse_route against the equations, eager and compiled."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hero_moe import HistoryRouter, RoutingHistory, sparse_route
from hero_moe.router import round_through
from history_rounding import assert_rounded_once, exact_logits
from program import ROOT

PYTHON = ROOT / "python"


class Stack(nn.Module):
    """MoE-like layers: each router's choice determines how its layer changes x."""

    def __init__(self, layers: int = 3, width: int = 32, experts: int = 16, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.routers = nn.ModuleList(
            HistoryRouter(width, experts, layer=l, visible=range(1, l), **options)
            for l in range(1, layers + 1)
        )
        self.mixers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        history, squares = RoutingHistory(), x.new_zeros(())
        for router, mixer in zip(self.routers, self.mixers):
            logits, probs = router(x, history)
            weights, _ = sparse_route(logits, 2)
            x = x + mixer(x) * weights[:, :1] * probs.amax(1, keepdim=True)
            squares = squares + logits.square().mean()
        return x, squares


def paper_stack(routers: list[HistoryRouter], xs: list[Tensor], detach: bool = True) -> list[Tensor]:
    """Logits of a stack, equation by equation, in fp64."""
    logits, probs = [], {}
    for router, x in zip(routers, xs):
        w = router.weight.double()
        z = x @ w[:, : x.shape[1]].t()
        if router.visible:
            h = torch.cat([probs[j] for j in router.visible], 1)
            rms_x, rms_h = x.square().mean(1).sqrt(), h.square().mean(1).sqrt()
            rho = rms_x / (rms_h + router.eps) * math.sqrt((router.layer - 1) / len(router.visible))
            rho = (rho.detach() if detach else rho) if router.scale else torch.ones_like(rho)
            z = z + (rho[:, None] * h) @ w[:, x.shape[1] :].t()
        logits.append(z)
        p = z.softmax(1)
        probs[router.layer] = p.detach() if detach else p
    return logits


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(
    ("visible", "window", "scale"), [((1, 2, 3), None, True), ((1, 2, 3), 2, True), ((2, 3), None, False)]
)
def test_logits_and_gradients_follow_the_paper(
    visible: tuple[int, ...], window: int | None, scale: bool, detach: bool
) -> None:
    torch.manual_seed(1)
    options: dict[str, Any] = {"window": window, "scale": scale, "detach": detach, "dtype": torch.float64}
    routers = [
        HistoryRouter(12, 6, layer=l, visible=[j for j in visible if j < l], **options) for l in range(1, 5)
    ]
    assert routers[3].visible == (visible if window is None else visible[-window:])
    xs = [torch.randn(7, 12, dtype=torch.float64, requires_grad=True) for _ in routers]
    history = RoutingHistory()
    got = [router(x, history) for router, x in zip(routers, xs)]
    want = paper_stack(routers, xs, detach)
    loss, expected = (sum((z * z.cos()).sum() for z in zs) for zs in ([z for z, _ in got], want))
    parameters = [*xs, *(r.weight for r in routers)]
    for (z, p), e in zip(got, want):
        torch.testing.assert_close(z, e, rtol=0, atol=1e-12)
        torch.testing.assert_close(p, e.softmax(1), rtol=0, atol=1e-12)
    for a, b in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    assert list(history) == [1, 2, 3, 4] and all(history[l].requires_grad != detach for l in history)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_lower_types_keep_fp32_logits_and_round_the_history_once(
    dtype: torch.dtype, detach: bool, autocast: bool
) -> None:
    torch.manual_seed(1)
    routers = [
        HistoryRouter(32, 16, layer=l, visible=range(1, l), detach=detach, dtype=dtype) for l in (1, 2, 3)
    ]
    operands = torch.bfloat16 if autocast else dtype
    history = RoutingHistory()
    for router in routers:
        x = torch.randn(40, 32).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits, probs = router(x, history)
        assert logits.dtype == probs.dtype == torch.float32
        seen = [history[j] for j in router.visible]
        exact = exact_logits(x.to(operands), router.weight.to(operands), seen, router.layer)
        # Products of bf16 values are exact in fp32.
        torch.testing.assert_close(logits.double(), exact, rtol=0, atol=5e-6)
        assert history[router.layer].dtype == (operands if detach else torch.float32)
        assert_rounded_once(history[router.layer], exact, operands)


def test_rounding_does_not_change_the_gradient() -> None:
    """Straight-through: also in bf16, the gradient through the history is that of the exact probabilities."""
    torch.manual_seed(1)
    probs = torch.randn(5, 8).softmax(1).requires_grad_()
    rounded, upstream = round_through(probs, torch.bfloat16), torch.randn(5, 8)
    assert torch.equal(rounded, probs.bfloat16().float())
    assert torch.equal(torch.autograd.grad(rounded, probs, upstream)[0], upstream)


def test_initial_weights_follow_the_depth_not_the_window() -> None:
    torch.manual_seed(1)
    router = HistoryRouter(24, 32, layer=9, visible=range(1, 9), window=2)
    bound = 1 / math.sqrt(24 + 8 * 32)
    assert router.weight.shape == (32, 24 + 2 * 32)
    assert 0.98 * bound < router.weight.abs().max() <= bound
    # The variance of U(-b, b) is b^2/3; 2,816 samples are within 10%.
    assert router.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.1)
    assert "layer=9" in repr(router) and "visible=(7, 8)" in repr(router)


@pytest.mark.parametrize("detach", [True, False])
def test_inductor_compiles_a_stack_for_any_number_of_tokens(detach: bool) -> None:
    stack = Stack(detach=detach)
    compiled = torch.compile(stack, fullgraph=True, dynamic=True)
    for tokens in (12, 33):
        results = []
        for run in (stack, compiled):
            x = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
            y, squares = run(x)
            leaves = [x, *stack.parameters()]
            results.append((y, squares, *torch.autograd.grad(y.square().mean() + squares, leaves)))
        for eager, inductor in zip(*results):
            torch.testing.assert_close(inductor, eager, rtol=1e-5, atol=2e-6)


def test_history_weights_get_gradients_and_the_history_none() -> None:
    torch.manual_seed(1)
    first, second = HistoryRouter(8, 4, layer=1), HistoryRouter(8, 4, layer=2, visible=(1,))
    history = RoutingHistory()
    x = torch.randn(5, 8)
    first(x, history)
    logits, _ = second(x, history)
    logits.square().sum().backward()
    assert first.weight.grad is None
    assert second.weight.grad[:, 8:].abs().min() > 0


def test_recomputing_a_layer_stores_the_same_values() -> None:
    stack, history = Stack(), RoutingHistory()
    x = torch.randn(5, 32)
    first = [router(x, history)[0] for router in stack.routers]
    stored = [history[l].clone() for l in history]
    again = [router(x, history)[0] for router in reversed(stack.routers)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert all(torch.equal(history[l], kept) for l, kept in zip((1, 2, 3), stored))


def test_history_is_a_mapping_that_detaches() -> None:
    history = RoutingHistory()
    history[3] = torch.rand(2, 4, requires_grad=True)
    assert dict(history).keys() == {3} and len(history) == 1 and 2 not in history
    assert not history[3].requires_grad
    with pytest.raises(KeyError, match=r"no layer 2, found layers \[3\]"):
        HistoryRouter(4, 4, layer=4, visible=(2, 3))(torch.rand(2, 4), history)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 0}, "layer: found 0"),
        ({"layer": 2, "visible": (2,)}, r"visible: found \(2,\)"),
        ({"layer": 4, "visible": (2, 1)}, r"visible: found \(2, 1\)"),
        ({"layer": 2, "visible": (1,), "window": 0}, "window: found 0"),
        ({"layer": 2, "visible": (1,), "window": 1.5}, "window: found 1.5"),
        ({"layer": 1, "num_experts": 0}, "num_experts: found 8, 0"),
        ({"layer": 1, "eps": -1.0}, "eps: found -1.0"),
        ({"layer": 1, "eps": math.nan}, "eps: found nan"),
    ],
)
def test_rejects_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HistoryRouter(**{"hidden_size": 8, "num_experts": 4, **options})


@pytest.mark.parametrize("layer", [1, 2])
def test_second_derivatives_raise(layer: int) -> None:
    """Kernels compute the gradients: with create_graph they are the same, and their backward pass raises."""
    history, x = RoutingHistory(), torch.rand(3, 8, dtype=torch.float64, requires_grad=True)
    routers = [
        HistoryRouter(8, 4, layer=l, visible=range(1, l), dtype=torch.float64) for l in range(1, layer + 1)
    ]
    loss = [router(x, history)[0].square().sum() for router in routers][-1]
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(gradient, plain, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.square().sum().backward()


def test_copies_and_state_dicts() -> None:
    stack = Stack()
    twin = copy.deepcopy(stack)
    other = Stack(scale=False)
    other.load_state_dict(stack.state_dict())
    x = torch.randn(4, 32)
    assert torch.equal(stack(x)[0], twin(x)[0]) and not torch.equal(stack(x)[0], other(x)[0])


def plain_route(
    z: Tensor, k: int, score: str, bias: Tensor, groups: int, top: int
) -> tuple[list[list[float]], list[list[int]]]:
    """Reference: sorts the scores of one token at a time."""
    weights, ids = [], []
    size = z.shape[1] // groups
    for row in z.softmax(1) if score == "softmax" else z.sigmoid():
        biased = (row + bias).tolist()
        two_best = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(groups)]
        kept = sorted(range(groups), key=lambda g: -two_best[g])[:top]
        best = sorted((e for e in range(len(row)) if e // size in kept), key=lambda e: -biased[e])[:k]
        total = sum(row[e].item() for e in best)
        weights.append([2.5 * row[e].item() / total for e in best])
        ids.append(best)
    return weights, ids


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("groups", "top"), [(1, 1), (4, 2), (12, 5)])
def test_sparse_route_matches_the_reference(score: str, groups: int, top: int) -> None:
    torch.manual_seed(1)
    logits, bias = torch.randn(20, 12, dtype=torch.float64), torch.randn(12, dtype=torch.float64) / 5
    weights, ids = sparse_route(logits, 3, score=score, bias=bias, groups=groups, top_groups=top, scaling=2.5)
    expected, chosen = plain_route(logits, 3, score, bias, groups, top)
    assert ids.tolist() == chosen
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)
    plain, _ = sparse_route(logits, 3, score=score, normalize=False)
    scores = logits.softmax(1) if score == "softmax" else logits.sigmoid()
    assert torch.equal(plain, scores.sort(descending=True).values[:, :3])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"score": "tanh"}, "score"), ({"groups": 5}, "groups"), ({"k": 7, "groups": 2}, "expected 1 to 6")],
)
def test_sparse_route_rejects_invalid_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sparse_route(torch.zeros(2, 12), **{"k": 2, **options})


def test_package_imports_torch_lazily() -> None:
    code = (
        "import sys, hero_moe, hero_moe.report; assert 'torch' not in sys.modules; "
        "assert 'HistoryRouter' in dir(hero_moe); hero_moe.HistoryRouter(8, 4, layer=1); "
        "assert 'torch' in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(PYTHON), "PATH": ""})


def test_error_names_a_missing_library(tmp_path: Path) -> None:
    code = "import hero_moe; hero_moe.HistoryRouter"
    environment = {"PYTHONPATH": str(PYTHON), "PATH": "", "HERO_LIBRARY": str(tmp_path / "none.so")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"ImportError: HERO_LIBRARY: {tmp_path}/none.so: no such file" in result.stderr
