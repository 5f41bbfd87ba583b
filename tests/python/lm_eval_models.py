"""Model folders and requests for the tests of lm-evaluation-harness."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
import torch
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from conftest import chinese_text, python_text
from hero_moe.evals.harness import HeroLM
from hf_models import class_of, configuration, random_model

LOGPROB = 1e-3  # tolerance of a request's log-likelihood
# For each family: the tokenizer's BOS token and the options of both adapters.
FAMILIES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "qwen3": (None, {"batch_size": 16}),
    "deepseek": ("<|begin|>", {"batch_size": 5, "max_length": 100}),
    "qwen3-hero": (None, {"batch_size": 8, "max_length": 64}),
}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@contextmanager
def offline() -> Iterator[None]:
    """One thread, no downloads."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield


def trained_tokenizer(bos: str | None) -> PreTrainedTokenizerFast:
    """Byte-level BPE with 400 ids; prepends the BOS token if there is one."""
    tokenizer, special = Tokenizer(models.BPE()), ["<|end|>", *([bos] if bos else [])]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(1)
    tokenizer.train_from_iterator([python_text(rng) + chinese_text(rng) for _ in range(10)], trainer)
    if bos:
        ids = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token=bos)
    fast.chat_template = TEMPLATE
    return fast


def write_model(name: str, folder: Path) -> Path:
    """A model folder of a family: 512 ids, 128 positions, an EOS token that is often the most likely."""
    tokenizer = trained_tokenizer(FAMILIES[name][0])
    tokenizer.save_pretrained(folder)
    config = configuration(name, vocab_size=512, eos_token_id=tokenizer.eos_token_id)
    model = random_model(class_of(config), config)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= 2
    model.save_pretrained(folder)
    return folder


def instances(kind: str, requests: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, arguments, n) for n, arguments in enumerate(requests)]


def pieces_of_text(seed: int, lengths: list[int]) -> list[str]:
    """Texts with the given numbers of characters, in Python and Chinese."""
    rng = random.Random(seed)
    texts = [(chinese_text if n % 3 == 2 else python_text)(rng) for n in range(len(lengths))]
    begins = [rng.randrange(100) for _ in lengths]
    return [t[b : b + length] for t, b, length in zip(texts, begins, lengths, strict=True)]


def continuation_logits(model: HeroLM, context: str, continuation: str) -> torch.Tensor:
    """Logits of every token of a continuation."""
    ids, after = model._encode_pair(context, continuation)
    return model._model.logits((ids + after)[-(model.max_length + 1) : -1])[-len(after) :]


def nearly_tied(logits: torch.Tensor, difference: float) -> bool:
    """Whether the two best logits of any token differ by less than `difference`."""
    best = logits.topk(2).values
    return bool(((best[:, 0] - best[:, 1]) < difference).any())
