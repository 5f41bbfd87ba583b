"""Random transformers models with random arguments of `hero_moe.patch`: the program reads the saved folder, computes
equal logits and generates equal ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from hypothesis import strategies as st
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import hero_moe
from random_cases import Case, property_tests, reproduce
from strategies import DrawFn

transformers.utils.logging.disable_progress_bar()

CLOSE = 2e-5  # of the largest logit
CLASSES = {
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "olmoe": (OlmoeConfig, OlmoeForCausalLM),
}


@st.composite
def models(draw: DrawFn) -> Case:
    """A model type, its configuration and the number of its MoE layers."""
    model_type = draw(st.sampled_from(sorted(CLASSES)))
    layers, experts = draw(st.integers(1, 6)), draw(st.sampled_from([4, 8, 12]))
    config: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "num_experts_per_tok": draw(st.integers(1, 4)),
        "initializer_range": 0.3,
        "tie_word_embeddings": draw(st.booleans()),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "num_local_experts" if model_type == "mixtral" else "num_experts": experts,
    }
    dense = 0
    if model_type == "qwen3_moe":
        others = draw(st.lists(st.integers(0, layers - 1), unique=True, max_size=layers - 1))
        config |= {"moe_intermediate_size": 16, "norm_topk_prob": draw(st.booleans()), "head_dim": 8}
        config |= {"num_key_value_heads": 2, "mlp_only_layers": sorted(others)}
        dense = len(others)
    elif model_type == "deepseek_v3":
        dense = draw(st.integers(0, layers - 1))
        config |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": 16}
        config |= {"kv_lora_rank": 16, "n_routed_experts": experts, "n_group": 2}
        fewest = 1 if config["num_experts_per_tok"] <= experts // 2 else 2
        config["topk_group"] = draw(st.integers(fewest, 2))
        config |= {"first_k_dense_replace": dense, "n_shared_experts": 1, "moe_intermediate_size": 16}
        del config["num_experts"]
    return {"model_type": model_type, "config": config, "routers": layers - dense}


@st.composite
def cases(draw: DrawFn) -> Case:
    model = draw(models())
    steps = draw(st.lists(st.integers(0, 1), min_size=model["routers"] - 1, max_size=model["routers"] - 1))
    by_layer = [sum(steps[:n]) for n in range(model["routers"])]
    options = {
        "window": draw(st.one_of(st.none(), st.integers(1, 6))),
        "stages": draw(st.one_of(st.integers(1, model["routers"]), st.just(by_layer))),
        "init": draw(st.sampled_from(["zero", "uniform", "uniform"])),
        "scale": draw(st.booleans()),
        "eps": draw(st.sampled_from([1e-6, 1e-3, 0.5])),
        "history": draw(st.sampled_from(["stage", "global"])),
        "detach": draw(st.booleans()),
    }
    return model | {
        "options": options,
        "seed": draw(st.integers(0, 2**32)),
        "length": draw(st.integers(1, 40)),
    }


def make(case: Case) -> Any:
    torch.manual_seed(case["seed"])
    config, model = CLASSES[case["model_type"]]
    made = model(config(**case["config"])).eval()
    with torch.no_grad():
        for name, values in made.state_dict().items():
            if values.dim() == 1:  # norms and biases, which are constant
                values.uniform_(-0.2, 0.2) if "bias" in name else values.uniform_(0.5, 1.5)
    return hero_moe.patch(made, **case["options"])


def check(case: Case, folder: Path) -> None:
    model = make(case)
    model.save_pretrained(folder)
    ids = torch.randint(0, 64, (2, case["length"]))
    ours = hero_moe.load(folder, device="cpu")
    with torch.no_grad():
        want = model(ids).logits
        new = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    worst = (ours.logits(ids) - want).abs().max() / want.abs().max()
    assert worst <= CLOSE, f"logits differ by {worst:.2g} of the largest"
    assert ours.generate(ids, max_tokens=8, temperature=0) == new[:, case["length"] :].tolist()


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
