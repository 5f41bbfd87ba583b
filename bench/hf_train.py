"""Training speed of Hugging Face transformers on a model of our shapes, in a separate process.

Prints one JSON line: tokens per second of every timed step. Model, batch, fused AdamW and gradient clipping
are the same as in `hero train`, as is the balance loss if transformers has one (Qwen3-MoE).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import tomllib

import torch
import transformers

# Our defaults that differ from those of the DeepSeek class.
DEEPSEEK = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
DEEPSEEK |= {"num_mtp_layers": 0}


def build(config: dict, experts: str) -> torch.nn.Module:
    """A randomly initialized model from a configuration's [model] section."""
    model = dict(config["model"])
    common = {"use_cache": False, "attn_implementation": "sdpa"}
    if model.pop("model_type") == "deepseek_v3":
        model.pop("scoring_func", None)  # the class supports only sigmoid
        hf = transformers.DeepseekV3Config(**DEEPSEEK | model, **common)
        model_class = transformers.DeepseekV3ForCausalLM
    else:
        loss = {"output_router_logits": True, "router_aux_loss_coef": 1e-3}
        hf = transformers.Qwen3MoeConfig(**model, decoder_sparse_step=1, **loss, **common)
        model_class = transformers.Qwen3MoeForCausalLM
    hf._experts_implementation = experts
    return model_class(hf)


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="TOML file with a [model] section")
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--experts", choices=["eager", "grouped_mm", "batched_mm"], default="grouped_mm")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, help="number of layers (default: all)")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8, help="timed steps, after two warm-up steps")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count() or 1)
    with open(args.config, "rb") as file:
        config = tomllib.load(file)
    if args.layers:
        config["model"]["num_hidden_layers"] = args.layers
    with torch.device(args.device):
        model = build(config, args.experts)
    if args.dtype == "bf16":
        model = model.to(torch.bfloat16)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.compile else model
    rates = []
    for step in range(args.steps + 2):
        tokens = torch.randint(0, config["model"]["vocab_size"], (args.batch, args.sequence))
        wait_for(args.device)
        begin = time.perf_counter()
        tokens = tokens.to(args.device)
        loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait_for(args.device)
        if step >= 2:
            rates.append(args.batch * args.sequence / (time.perf_counter() - begin))
    parameters = sum(p.numel() for p in weights)
    json.dump({"tokens_per_second": rates, "loss": loss.item(), "parameters": parameters}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
