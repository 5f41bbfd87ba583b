"""Models trained on conversations, and clients of their servers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_files import write_rows
from hero_moe.data.commands import main as data_main
from program import checkpoint, run_hero, training
from serving import Server

if TYPE_CHECKING:
    import openai

USER = [{"role": "user", "content": "def index"}]


def write_short_chats(path: Path) -> Path:
    """Conversations with short answers."""
    rng = random.Random(3)
    words = ["def", "index", "return", "路由", "🦆", "history"]
    rows = [
        {"m": [{"role": role, "content": " ".join(rng.choices(words, k=rng.randint(1, 3)))}
               for role in ("user", "assistant")]}
        for _ in range(300)
    ]  # fmt: skip
    return write_rows(path, rows)


def trained_on_chats(folder: Path, tokenizer: Path, template: str, **more: Any) -> Path:
    """A run in fp64 whose answers are short, on data with a chat template."""
    chats = write_short_chats(folder / "chats.jsonl")
    data = folder / "data" / "chats"
    words = ["tokenize", "--input", chats, "--messages", "m", "--chat-template", template]
    assert data_main([*map(str, [*words, "--tokenizer", tokenizer, "--out", data, "--workers", 1])]) == 0
    given = {"train.dtype": "fp64", "train.steps": 40, "optim.lr": 5e-3, "optim.schedule": "constant", "train.loss_mask": True,
             "train.pack": "best_fit", "train.sequence": 128, "train.global_batch": 4, "train.micro_batch": 4}  # fmt: skip
    run_hero(*training(folder / "tiny", data, given | more))
    return folder / "tiny"


def without_template(run: Path, folder: Path) -> Path:
    """The model of a run of `trained_on_chats` without its chat template."""
    shutil.copytree(checkpoint(run, 40), folder)
    for name in ("chat_template.jinja", "manifest.json", "state.json"):
        (folder / name).unlink()
    return folder


def client_of(server: Server) -> openai.OpenAI:
    import openai  # takes a second

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(client: openai.OpenAI, messages: Any = USER, **options: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=messages, **options)


def chatml(messages: list[dict[str, Any]]) -> str:
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + "<|im_start|>assistant\n"
