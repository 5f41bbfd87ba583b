"""All bf16 models: the program's errors are bounded and similar to those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bf16_errors import check_bf16, check_mean
from hf_models import (
    DEEPSEEK_VARIANTS,
    MIXTRAL_VARIANTS,
    OLMOE_VARIANTS,
    QWEN3_VARIANTS,
    class_of,
    configuration,
    random_model,
)

FAMILIES = {
    "qwen3": QWEN3_VARIANTS,
    "deepseek": DEEPSEEK_VARIANTS,
    "olmoe and mixtral": OLMOE_VARIANTS | MIXTRAL_VARIANTS,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_errors_are_similar_to_those_of_transformers(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    errors = []
    for seed, name in enumerate(FAMILIES[family]):
        experts = "n_routed_experts" if name.startswith("deepseek") else "num_experts"
        config = configuration(name, **{experts: 16})  # supported by the fused kernels
        model = random_model(class_of(config), config, seed).bfloat16()
        model.save_pretrained(tmp_path / name)
        errors.append(check_bf16(model, tmp_path / name))
    check_mean(errors)
