"""Training speed of torchtitan's Qwen3 and DeepSeek-V3 modules on a model of our shapes; run by .venv-torchtitan.

Prints one JSON line: tokens per second of every timed step. torchtitan's trainer needs GPUs: the model, its experts
and its loss are torchtitan's, the loop is that of bench/hf_train.py. Without a balance loss, which torchtitan lacks.
"""

from __future__ import annotations

from typing import Any

import torch
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.models import moe
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, DeepSeekV3ModelArgs
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs

from timed_training import arguments, train


def experts_of(model: dict[str, Any], count: str, implementation: str) -> moe.MoEArgs:
    return moe.MoEArgs(
        num_experts=model[count],
        num_shared_experts=model.get("n_shared_experts", 0),
        top_k=model["num_experts_per_tok"],
        score_func=model.get("scoring_func", "softmax"),
        route_norm=True,
        score_before_experts=False,
        use_grouped_mm=implementation == "grouped_mm",
        load_balance_coeff=None,
    )


def build(model: dict[str, Any], implementation: str) -> torch.nn.Module:
    """A randomly initialized model from a configuration's [model] section."""
    common = {
        "dim": model["hidden_size"],
        "n_layers": model["num_hidden_layers"],
        "n_heads": model["num_attention_heads"],
        "vocab_size": model["vocab_size"],
        "max_seq_len": model["max_position_embeddings"],
        "moe_inter_dim": model["moe_intermediate_size"],
    }
    result: torch.nn.Module
    if model["model_type"] == "deepseek_v3":
        ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        own = {name: model[name] for name in ranks}
        experts = experts_of(model, "n_routed_experts", implementation)
        args = DeepSeekV3ModelArgs(**common, **own, n_dense_layers=0, moe_args=experts)
        args.moe_impl = "standard"
        result = DeepSeekV3Model(args)
    else:
        experts = experts_of(model, "num_experts", implementation)
        heads = {"n_kv_heads": model["num_key_value_heads"], "head_dim": model["head_dim"]}
        result = Qwen3Model(Qwen3ModelArgs(**common, **heads, moe_enabled=True, moe_args=experts))
    with torch.no_grad():
        result.init_weights()
    return result


def run_on_cpu() -> None:
    """torchtitan counts assignments with torch.histc, which does not take integers on a CPU, and pads the tokens of an
    expert with a Triton kernel, which a CPU's grouped product does not need."""
    histc = torch.histc
    torch.histc = lambda values, **options: histc(values.float(), **options).to(values.dtype)
    moe.moe.indices_padding_wrapper = lambda function: function


def next_token_loss(run: Any, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy_loss(run(tokens), tokens.roll(-1, dims=1)) / tokens.numel()


def main() -> None:
    args = arguments(__doc__, ["loop", "grouped_mm"])
    if args.device == "cpu":
        run_on_cpu()
    train(args, lambda model: build(model, args.experts), next_token_loss)


if __name__ == "__main__":
    main()
