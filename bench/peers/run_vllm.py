"""vLLM on a model folder; run by .venv-vllm. Arguments: FOLDER fp32|bf16 eager|compiled."""

from __future__ import annotations

import os
import sys

from loop import Generate, serve
from vllm_settings import TYPES, variables

os.environ |= variables() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # the engine in this process


def load() -> Generate:
    import vllm

    folder, dtype, mode = sys.argv[1:]
    model = vllm.LLM(
        folder, dtype=TYPES[dtype], enforce_eager=mode == "eager",
        skip_tokenizer_init=True, enable_prefix_caching=False, max_num_seqs=64,
    )  # fmt: skip

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        options = vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        return [
            list(result.outputs[0].token_ids) for result in model.generate(inputs, options, use_tqdm=False)
        ]

    return generate


if __name__ == "__main__":
    serve(load)
