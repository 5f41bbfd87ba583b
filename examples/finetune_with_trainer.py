"""Trains a transformers model with routing history on text files, using transformers' own Trainer.

    pip install "hero-moe[transformers]" accelerate
    python examples/finetune_with_trainer.py [FILE ...] [--steps N] [--out DIR]

The model is a small byte-level Qwen3-MoE with random weights, so that nothing is downloaded; replace it with
`AutoModelForCausalLM.from_pretrained(...)` and its tokenizer. Without files, it trains on Python's own
sources.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

import hero_moe

LENGTH = 64  # bytes of one example


def examples(files: list[Path]) -> list[dict[str, torch.Tensor]]:
    """The concatenated files, split into examples of LENGTH bytes."""
    text = b"".join(line for file in files for line in file.read_bytes().splitlines(keepends=True))
    pieces = torch.tensor(list(text[: len(text) // LENGTH * LENGTH])).view(-1, LENGTH)
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def small_model() -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=LENGTH,
        output_router_logits=True,  # adds the load-balancing loss
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3MoeForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, help="output folder of the trained model (default: not saved)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps: found {arguments.steps}, expected at least 1")
    files = arguments.files or sorted(Path(os.__file__).parent.glob("*.py"))[:20]
    data = examples(files)
    if not data:
        names = ", ".join(map(str, files))
        parser.error(f"{names}: found fewer than {LENGTH} bytes, expected at least one example")
    torch.manual_seed(0)
    model = hero_moe.patch(small_model(), window=2)  # before the Trainer creates its optimizer
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=arguments.steps,
                per_device_train_batch_size=8,
                learning_rate=3e-3,
                logging_steps=min(10, arguments.steps),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=0,
            ),
            train_dataset=data,
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    for name, weight in model.named_parameters():
        if name.endswith("gate.weight"):
            print(f"{name}: {tuple(weight.shape)}, |W_R| {weight[:, model.config.hidden_size :].norm():.4f}")
    if arguments.out:
        model.save_pretrained(arguments.out)
        print(f"saved to {arguments.out}")


if __name__ == "__main__":
    main()
