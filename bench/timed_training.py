"""Steps of a PyTorch model as `hero train` makes them, timed: for the scripts that train the models of other projects
in processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import torch


def arguments(description: str | None, experts: Sequence[str]) -> argparse.Namespace:
    """The command line of such a script; `experts`: implementations of the experts, the default first."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", required=True, help="TOML file with a [model] section")
    parser.add_argument(
        "--dtype",
        choices=["bf16", "mixed", "fp32"],
        default="bf16",
        help="mixed: bf16, with weights, gradients and moments in fp32 for the optimizer",
    )
    parser.add_argument("--experts", choices=experts, default=experts[0])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, help="number of layers (default: all)")
    parser.add_argument("--batch", type=int, default=4, help="sequences per micro-batch")
    parser.add_argument("--micro-batches", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8, help="timed steps, after two warm-up steps")
    parser.add_argument(
        "--max-seconds",
        type=float,
        default=float("inf"),
        help="stop when the timed steps have taken this long",
    )
    return parser.parse_args()


def model_section(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration's [model] section, with the layers of the command line."""
    with open(args.config, "rb") as file:
        model = tomllib.load(file)["model"]
    return model | ({"num_hidden_layers": args.layers} if args.layers else {})


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Optimizer:
    """Gradient clipping and fused AdamW on the weights, or on fp32 copies of them as in `hero train`."""

    def __init__(self, weights: Sequence[torch.nn.Parameter], fp32_copies: bool) -> None:
        self._weights = list(weights)
        self._values = self._weights
        if fp32_copies:
            self._values = [torch.nn.Parameter(weight.detach().float()) for weight in weights]
        self._adamw = torch.optim.AdamW(
            self._values, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def step(self) -> None:
        """Updates the weights and drops their gradients."""
        copies = self._values is not self._weights
        if copies:
            for value, weight in zip(self._values, self._weights, strict=True):
                value.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(self._values, 1.0)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self._values)


def train(
    args: argparse.Namespace,
    build: Callable[[dict[str, Any]], torch.nn.Module],
    loss_of: Callable[[Any, torch.Tensor], torch.Tensor],
) -> None:
    """Prints one JSON line: tokens per second of every timed step, from the loss of the model, compiled if requested, for
    tokens [B, S]."""
    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    section = model_section(args)
    with torch.device(args.device):
        model = build(section)
    weights = list(model.parameters())
    if args.dtype != "fp32":
        for weight in weights:  # not the buffers: angles of rotary embeddings
            weight.data = weight.data.to(torch.bfloat16)
    optimizer = Optimizer(weights, args.dtype == "mixed")
    run = torch.compile(model) if args.compile else model
    seconds: list[float] = []
    for step in range(args.steps + 2):
        batches = torch.randint(0, section["vocab_size"], (args.micro_batches, args.batch, args.sequence))
        wait_for(args.device)
        begin = time.perf_counter()
        for tokens in batches:
            loss = loss_of(run, tokens.to(args.device)) / args.micro_batches
            loss.backward()
        optimizer.step()
        wait_for(args.device)
        if step >= 2:
            seconds.append(time.perf_counter() - begin)
        if sum(seconds) > args.max_seconds:
            break
    rates = [batches.numel() / each for each in seconds]
    parameters = sum(p.numel() for p in weights)
    json.dump(
        {"tokens_per_second": rates, "loss": loss.item() * args.micro_batches, "parameters": parameters},
        sys.stdout,
    )
    print()
