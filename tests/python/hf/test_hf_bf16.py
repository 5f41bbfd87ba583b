"""All bf16 models: the program's errors are bounded and similar to those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bf16_errors import check_bf16
from hf_models import VARIANTS, class_of, configuration, random_model


@pytest.mark.parametrize("name", VARIANTS)
def test_bf16_error_is_similar_to_transformers(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    experts = "n_routed_experts" if name.startswith("deepseek") else "num_experts"
    config = configuration(name, **{experts: 16})  # supported by the fused kernels
    model = random_model(class_of(config), config).bfloat16()
    model.save_pretrained(tmp_path)
    check_bf16(model, tmp_path)
