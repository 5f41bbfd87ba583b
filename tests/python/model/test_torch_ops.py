"""torch.ops.hero: registration, tracing, values and gradients against plain PyTorch, autocast, Inductor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hero_moe.library  # noqa: F401

hero = torch.ops.hero
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
# Maximum difference relative to the largest value, against fp64. In bf16 the operands are exact and logits
# are fp32, but gradients are rounded to bf16 (2^-9).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6}
GRADIENT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 8e-3}
DEPTH, EPS = 1.7, 1e-6


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype).to(device)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def history_of(
    tokens: int, experts: int, layers: int, dtype: torch.dtype, device: str = "cpu"
) -> list[Tensor]:
    return [normal(tokens, experts, seed=10 + j).softmax(-1).to(dtype).to(device) for j in range(layers)]


def squares_of(history: list[Tensor]) -> list[Tensor]:
    return [h.to(torch.promote_types(h.dtype, torch.float32)).square().sum(-1) for h in history]


def paper_logits(x: Tensor, w: Tensor, history: list[Tensor], scale: bool) -> Tensor:
    """The paper's equations in fp64, without gradient through rho."""
    d = x.shape[1]
    logits = x @ w[:, :d].t()
    if history:
        h = torch.cat([q.double() for q in history], 1)
        rho = DEPTH * x.square().mean(1).sqrt() / (h.square().mean(1).sqrt() + EPS)
        rho = rho.detach() if scale else torch.ones_like(rho)
        logits = logits + (rho[:, None] * h) @ w[:, d:].t()
    return logits


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    worst = (got.double() - want).abs().max() / want.abs().max()
    assert worst <= tolerance, f"differs by {worst:.2e} of the greatest value, allowed {tolerance:.0e}"


def operands(name: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Arguments of one operator: 12 tokens, width 32, 8 or 16 experts."""
    x = leaf(normal(12, 32, seed=1, dtype=dtype))
    ids = torch.randint(-1, 8, (12, 2), generator=torch.Generator().manual_seed(3))
    _, offsets, token, row = hero.plan(ids, 8)
    y = leaf(normal(token.numel(), 32, seed=2, dtype=dtype))
    history = history_of(12, 16, 2, dtype)
    angles = normal(5, 4, seed=4)

    def weight(*shape: int) -> Tensor:
        return leaf(normal(*shape, seed=5, dtype=dtype))

    return {
        "linear": (leaf(x.view(3, 4, 32)), weight(16, 32)),
        "embedding": (torch.arange(12).view(3, 4) % 7, weight(7, 32)),
        "rms_norm": (leaf(x.view(3, 4, 32)), weight(32), 1e-6),
        "rope": (leaf(normal(2, 5, 3, 8, seed=6, dtype=dtype)), angles.cos(), angles.sin(), True),
        "swiglu": (x,),
        "route": (x, weight(16, 64), history, squares_of(history), DEPTH, EPS, True),
        "history_logits": (x, weight(16, 32), history, squares_of(history), DEPTH, EPS, True),
        "plan": (ids, 8),
        "permute": (x, token, row),
        "experts": (y, weight(8, 32, 32), weight(8, 32, 16), offsets),
        "combine": (y, leaf(normal(12, 2, seed=7)), row, token),
        "linear_cross_entropy": (x, weight(48, 32), torch.arange(12) * 4 - 1),
    }[name]


PUBLIC = (
    "linear embedding rms_norm rope swiglu route history_logits plan permute experts combine "
    "linear_cross_entropy"
).split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", PUBLIC)
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    results = torch.library.opcheck(getattr(hero, name).default, operands(name, dtype))
    assert set(results.values()) == {"SUCCESS"} and len(results) == 4


def test_opcheck_of_a_router_without_visible_layers() -> None:
    x, w = leaf(normal(5, 8, seed=1)), leaf(normal(4, 8, seed=2))
    torch.library.opcheck(hero.route.default, (x, w, [], [], 1.0, EPS, True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize(
    ("experts", "layers", "scale"), [(16, 3, True), (16, 3, False), (16, 0, True), (5, 2, True)]
)
def test_route_follows_the_paper(
    device: str, dtype: torch.dtype, experts: int, layers: int, scale: bool
) -> None:
    x = leaf(normal(33, 32, seed=1, dtype=dtype, device=device))
    w = leaf(normal(experts, 32 + layers * experts, seed=2, dtype=dtype, device=device) / 8)
    history = history_of(33, experts, layers, dtype, device)
    logits, probs, sumsq = hero.route(x, w, history, squares_of(history), DEPTH, EPS, scale)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert logits.dtype == probs.dtype == sumsq.dtype == wide and not sumsq.requires_grad

    x64, w64 = leaf(x.double()), leaf(w.double())
    expected = paper_logits(x64, w64, history, scale)
    assert_near(logits, expected, TOLERANCE[dtype])
    assert_near(probs, expected.softmax(-1), TOLERANCE[dtype])
    stored = probs.detach().to(dtype).double()
    assert_near(sumsq, stored.square().sum(-1), TOLERANCE[dtype])

    g, h = normal(33, experts, seed=7, device=device), normal(33, experts, seed=8, device=device)
    ((logits * g).sum() + (probs * h).sum()).backward()
    ((expected * g).sum() + (expected.softmax(-1) * h).sum()).backward()
    assert_near(x.grad, x64.grad, GRADIENT_TOLERANCE[dtype])
    assert_near(w.grad, w64.grad, GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["fp64", "bf16"])
def test_history_logits_match_the_history_part_of_route(device: str, dtype: torch.dtype) -> None:
    x = leaf(normal(9, 32, seed=1, dtype=dtype, device=device))
    w = leaf(normal(16, 48, seed=2, dtype=dtype, device=device))
    history = history_of(9, 16, 3, dtype, device)
    got = hero.history_logits(x, w, history, squares_of(history), DEPTH, EPS, True)
    w64 = leaf(w.double())
    whole = torch.cat([torch.zeros(16, 32, dtype=torch.float64, device=device), w64], 1)
    expected = paper_logits(x.detach().double(), whole, history, True)
    assert_near(got, expected, TOLERANCE[dtype])
    g = normal(9, 16, seed=7, device=device)
    (got * g).sum().backward()
    (expected * g).sum().backward()
    assert_near(w.grad, w64.grad, GRADIENT_TOLERANCE[dtype])
    assert x.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [1, 33])
def test_adjacent_slices_and_separate_tensors_are_bit_identical(dtype: torch.dtype, tokens: int) -> None:
    whole = torch.cat(history_of(tokens, 16, 5, dtype), 1)
    sums = torch.stack(squares_of(list(whole.split(16, 1))), 1)
    slices, slice_sums = list(whole.split(16, 1))[1:4], list(sums.unbind(1))[1:4]
    results = []
    for history, squares in (
        (slices, slice_sums),
        ([h.clone() for h in slices], [s.clone() for s in slice_sums]),
        ([h.t().contiguous().t() for h in slices], slice_sums),
    ):
        x, w = leaf(normal(tokens, 32, seed=1, dtype=dtype)), leaf(normal(16, 80, seed=2, dtype=dtype))
        logits, probs, _ = hero.route(x, w, history, squares, DEPTH, EPS, True)
        (logits.square().sum() + probs.square().sum()).backward()
        results.append((logits, probs, x.grad, w.grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))
    # The order of the slices matters: these are the same slices in reverse order.
    swapped, _, _ = hero.route(x, w, slices[::-1], slice_sums[::-1], DEPTH, EPS, True)
    assert not torch.equal(swapped, results[0][0])


def test_adjacent_slices_are_not_copied() -> None:
    whole = torch.cat(history_of(64, 16, 2, torch.float32), 1)
    slices, sums = whole.split(16, 1), torch.stack(squares_of(list(whole.split(16, 1))), 1).unbind(1)
    x, w = normal(64, 8, seed=1), normal(16, 40, seed=2)

    def copies(history: list[Tensor], squares: list[Tensor]) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            hero.route(x, w, history, squares, DEPTH, EPS, True)
        return sum(event.count for event in profile.key_averages() if event.key == "aten::cat")

    assert copies(slices, sums) == 0
    assert copies([h.clone() for h in slices], [s.clone() for s in sums]) == 2


def test_gradients_match_finite_differences() -> None:
    history = history_of(4, 3, 2, torch.float64)
    x, w = leaf(normal(4, 5, seed=1, dtype=torch.float64)), leaf(normal(3, 11, seed=2, dtype=torch.float64))
    squares = squares_of(history)

    def of_weight(weight: Tensor) -> tuple[Tensor, ...]:
        return hero.route(x.detach(), weight, history, squares, DEPTH, EPS, True)[:2]

    def unscaled(*both: Tensor) -> tuple[Tensor, ...]:
        return hero.route(*both, history, squares, DEPTH, EPS, False)[:2]

    # x affects rho, which has no gradient: finite differences in x match only without scaling.
    assert torch.autograd.gradcheck(of_weight, (w,))
    assert torch.autograd.gradcheck(unscaled, (x, w))


def test_moe_layer_of_operators_matches_plain_torch() -> None:
    shapes = [(9, 8), (4, 12, 8), (4, 8, 6)]
    x, gate_up, down = (leaf(normal(*s, seed=i, dtype=torch.float64)) for i, s in enumerate(shapes))
    weights = leaf(normal(9, 2, seed=5, dtype=torch.float64))
    ids = torch.stack([torch.arange(9) % 4, (torch.arange(9) + 1) % 4], 1)
    ids[3, 0] = ids[5, 1] = -1

    def operators() -> Tensor:
        _, offsets, token, row = hero.plan(ids, 4)
        y = hero.experts(hero.permute(x, token, row), gate_up, down, offsets)
        return hero.combine(y, weights, row, token)

    def plain() -> Tensor:
        out = []
        for t in range(9):
            parts = [torch.zeros(8, dtype=torch.float64)]
            for k in range(2):
                if (e := int(ids[t, k])) >= 0:
                    g, u = (gate_up[e] @ x[t]).chunk(2)
                    parts.append(weights[t, k] * (down[e] @ (torch.nn.functional.silu(g) * u)))
            out.append(sum(parts))
        return torch.stack(out)

    got, want = operators(), plain()
    assert_near(got, want.detach(), 1e-12)
    leaves = (x, gate_up, down, weights)
    gradients = (torch.autograd.grad(y.square().sum(), leaves) for y in (got, want))
    for a, b in zip(*gradients):
        assert_near(a, b, 1e-12)


def test_autocast_lowers_operands_and_keeps_logits() -> None:
    x, w, history = normal(12, 32, seed=1), normal(16, 64, seed=2), history_of(12, 16, 2, torch.float32)
    rest = history, squares_of(history), DEPTH, EPS, True
    with torch.autocast("cpu", torch.bfloat16):
        logits, probs, _ = hero.route(x, w, *rest)
        part = hero.history_logits(x, w[:, 32:], *rest)
        assert hero.linear(x, w[:, :32]).dtype == torch.bfloat16
        loss = hero.linear_cross_entropy(x, normal(48, 32, seed=3), torch.arange(12))
    x16, w16 = x.bfloat16(), w.bfloat16()
    by_hand, _, _ = hero.route(x16, w16, *rest)
    assert logits.dtype == probs.dtype == part.dtype == loss.dtype == torch.float32
    assert torch.equal(logits, by_hand)
    assert torch.equal(part, hero.history_logits(x16, w16[:, 32:], *rest))
    expected = paper_logits(x.double(), w.double(), history, True)
    # Only the operands are rounded.
    assert 1e-4 < (logits - expected).abs().max() / expected.abs().max() < 2e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(16, 63)}, "weight must be 16 x 64 for 2 layers of history"),
        ({"weight": torch.zeros(16, 64, dtype=torch.bfloat16)}, "x is Float, weight is BFloat16"),
        ({"sumsq": [torch.zeros(12)]}, "one tensor of sums of squares per layer"),
        ({"history": [torch.zeros(12, 16), torch.zeros(11, 16)]}, r"history\[1\] must be .* = \[12, 16\]"),
        ({"x": torch.zeros(2, 12, 32)}, r"x must be \[T, D\]"),
    ],
)
def test_rejects_invalid_operands(change: dict[str, Any], message: str) -> None:
    history = history_of(12, 16, 2, torch.float32)
    good = {"x": torch.zeros(12, 32), "weight": torch.zeros(16, 64), "history": history}
    squares = {"sumsq": squares_of(history)}
    with pytest.raises(RuntimeError, match=message):
        hero.route(**{**good, **squares, **change}, depth_factor=1.0, eps=EPS, scale=True)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_inductor_compiles_an_moe_layer_with_data_dependent_rows() -> None:
    def layer(x: Tensor, weights: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        _, offsets, token, row = hero.plan(ids, 8)
        y = hero.experts(hero.permute(x, token, row), gate_up, down, offsets)
        return hero.combine(y, weights, row, token)

    gate_up, down = normal(8, 32, 16, seed=1), normal(8, 16, 16, seed=2)
    compiled = torch.compile(layer, fullgraph=True)
    for rows in (24, 11):  # of 24 assignments; the rest are dropped
        ids = (torch.arange(24) % 8).masked_fill(torch.arange(24) >= rows, -1).view(12, 2)
        results = []
        for run in (layer, compiled):
            leaves = leaf(normal(12, 16, seed=3)), leaf(normal(12, 2, seed=4))
            y = run(*leaves, ids, gate_up, down)
            results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for eager, inductor in zip(*results):
            assert_near(inductor, eager.double(), 1e-6)
