"""Writes a Qwen3-MoE model folder as a GGUF file without tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

TYPES = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}


def write_gguf(folder: Path, path: Path, dtype: str) -> None:
    """Matrices in `dtype`; norms and the router in fp32, as llama.cpp's own converter. ValueError for another
    model: llama.cpp normalizes the probabilities of the chosen experts, and its layers all have experts."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3_moe" or not config["norm_topk_prob"] or config.get("mlp_only_layers"):
        raise ValueError(f"{folder}: expected qwen3_moe with norm_topk_prob and experts in every layer")
    layers, experts = config["num_hidden_layers"], config.get("num_experts") or config["num_local_experts"]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(layers)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config.get("intermediate_size") or config["moe_intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])

    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= {name: tensor.float().numpy() for name, tensor in load_file(file).items()}
    for layer in range(layers):
        for part in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.layers.{layer}.mlp.experts"
            stack = [weights.pop(f"{prefix}.{expert}.{part}.weight") for expert in range(experts)]
            weights[f"{prefix}.{part}.weight"] = np.stack(stack)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, layers)
    for name, values in weights.items():
        exact = values.ndim == 1 or name.endswith("mlp.gate.weight")
        kind = TYPES["fp32" if exact else dtype]
        target = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
