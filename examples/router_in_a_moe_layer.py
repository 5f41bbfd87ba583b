"""HistoryRouter inside an MoE layer written in plain PyTorch: a stack of layers learns to add modulo 16.

    python examples/router_in_a_moe_layer.py [--steps N]

Prints the loss, the accuracy, and the weight norms of each router for the hidden state and the history.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from hero_moe import HistoryRouter, RoutingHistory, sparse_route


class MoeLayer(nn.Module):
    """Experts selected by a router that also reads the routing of earlier layers for the same token."""

    def __init__(self, width: int, experts: int, k: int, layer: int) -> None:
        super().__init__()
        self.k = k
        self.norm = nn.RMSNorm(width)
        self.router = HistoryRouter(width, experts, layer=layer, visible=range(1, layer))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(experts)
        )

    def forward(self, x_TD: Tensor, history: RoutingHistory) -> Tensor:
        y_TD = self.norm(x_TD)
        logits_TE, _ = self.router(y_TD, history)
        weights_TK, ids_TK = sparse_route(logits_TE, self.k)
        out_TD = torch.zeros_like(x_TD)
        for e, expert in enumerate(self.experts):
            token, slot = (ids_TK == e).nonzero(as_tuple=True)
            out_TD = out_TD.index_add(0, token, expert(y_TD[token]) * weights_TK[token, slot, None])
        return x_TD + out_TD


class Adder(nn.Module):
    """Two numbers below `modulus` -> logits of their sum modulo `modulus`."""

    def __init__(self, modulus: int = 16, width: int = 64, experts: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * modulus, width)
        self.layers = nn.ModuleList(MoeLayer(width, experts, 2, layer) for layer in range(1, layers + 1))
        self.head = nn.Linear(width, modulus)

    def forward(self, a_T: Tensor, b_T: Tensor) -> Tensor:
        history = RoutingHistory()  # one per forward pass
        x_TD = self.embed(a_T) + self.embed(b_T + self.head.out_features)
        for layer in self.layers:
            x_TD = layer(x_TD, history)
        return self.head(x_TD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = Adder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        a, b = torch.randint(0, 16, (2, 256))
        logits = model(a, b)
        loss = functional.cross_entropy(logits, (a + b) % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps:
            accuracy = (logits.argmax(1) == (a + b) % 16).float().mean()
            print(f"step {step:4d}  loss {loss:.4f}  accuracy {accuracy:.3f}")
    for layer in model.layers:
        router = layer.router
        own, seen = router.weight.split([router.hidden_size, router.weight.shape[1] - router.hidden_size], 1)
        norms = f"|W_O| {own.norm():.2f}, |W_R| {seen.norm():.2f}"
        print(f"layer {router.layer}: {norms}, reads layers {router.visible}")


if __name__ == "__main__":
    main()
