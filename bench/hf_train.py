"""Training speed of Hugging Face transformers on a model of our shapes, in a separate process.

Prints one JSON line: tokens per second of every timed step. Model, batch, fused AdamW and gradient clipping
are the same as in `hero train`, as is the balance loss if transformers has one (Qwen3-MoE).
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from timed_training import arguments, train

# Our defaults that differ from those of the DeepSeek class.
DEEPSEEK = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 0}
DEEPSEEK |= {"num_mtp_layers": 0}


def build(model: dict[str, Any], experts: str) -> torch.nn.Module:
    """A randomly initialized model from a configuration's [model] section."""
    common = {"use_cache": False, "attn_implementation": "sdpa"}
    values = dict(model)
    if values.pop("model_type") == "deepseek_v3":
        values.pop("scoring_func", None)  # the class supports only sigmoid
        hf = transformers.DeepseekV3Config(**DEEPSEEK | values, **common)
        model_class = transformers.DeepseekV3ForCausalLM
    else:
        loss = {"output_router_logits": True, "router_aux_loss_coef": 1e-3}
        hf = transformers.Qwen3MoeConfig(**values, decoder_sparse_step=1, **loss, **common)
        model_class = transformers.Qwen3MoeForCausalLM
    hf._experts_implementation = experts
    return model_class(hf)


def main() -> None:
    args = arguments(__doc__, ["grouped_mm", "eager", "batched_mm"])
    transformers.logging.set_verbosity_error()
    train(
        args,
        lambda model: build(model, args.experts),
        lambda run, tokens: run(input_ids=tokens, labels=tokens).loss,
    )


if __name__ == "__main__":
    main()
