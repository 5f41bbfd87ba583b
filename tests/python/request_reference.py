"""What the server's responses have to be: samples, ends and log-probabilities computed from the model's ids and logits
and the tokenizer's pieces."""

from __future__ import annotations

import atexit
import codecs
import functools
import json
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from hypothesis import strategies as st

import hero_moe
from conftest import chinese_text, python_text
from program import run_hero
from serving import Server, run_threads, served_run, serving
from strategies import DrawFn, option

TOLERANCE = 1e-9  # of log-probabilities in fp64
VOCABULARY = 500
TEXTS = [
    "def ",
    "def index_1(node):\n\treturn ",
    "的一是",
    " ",
    "x",
    "",
    "\n\n",
    "return left  + 7\n\ndef",
    "é€🙂",
]
STOPS = ["\n", "return", " ", ":\n\t", "的", "一。", "e", "_1(", "\N{REPLACEMENT CHARACTER}", "nowhere", "🙂"]
SEEDS = st.integers(-(2**63), 2**64 - 1)  # of the first sequence; those of the others follow modulo 2^64
# Fields of every request for text.
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 60),
    "n": st.integers(1, 3),
    "temperature": option(0, 0.3, 1, 2, 50),
    "top_p": option(0, 0.5, 0.9, 1),
    "top_k": option(-1, 0, 1, 3, 1000),
    "stop": st.one_of(st.sampled_from(STOPS), st.lists(st.sampled_from(STOPS), max_size=3)),
    "ignore_eos": st.booleans(),
    "stream": st.booleans(),
    "user": st.just("somebody"),
}


def some_of(draw: DrawFn, fields: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Values of some fields, sometimes null."""
    body = {}
    for name, values in fields.items():
        if draw(st.booleans()):
            null = draw(option(*[False] * 9, True))
            body[name] = None if null else draw(values)
    return body


@dataclass(frozen=True)
class Served:
    """A server, and the same model and tokenizer in this process."""

    server: Server
    model: hero_moe.LanguageModel
    tokenizer: sentencepiece.SentencePieceProcessor

    def bytes_of(self, ids: list[int]) -> bytes:
        """The text of ids within a text."""
        out = b""
        for id in ids:
            if id >= self.tokenizer.get_piece_size():  # the vocabulary is padded
                continue
            piece = self.tokenizer.id_to_piece(id)
            if self.tokenizer.is_byte(id):
                out += bytes([int(piece[1:-1], 16)])
            elif self.tokenizer.is_unknown(id):
                out += self.tokenizer.decode([id]).encode()
            elif not self.tokenizer.is_control(id):
                out += piece.replace("▁", " ").encode()
        return out


@functools.cache
def trained_model() -> tuple[Path, Path]:
    """A run for all cases of this process, and its tokenizer."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hero-moe-requests-")))
    rng = random.Random(1)
    (folder / "text.txt").write_text("".join(python_text(rng) + chinese_text(rng) for _ in range(20)))
    model = folder / "pieces.model"
    text = ["--input", folder / "text.txt", "--workers", 1]
    run_hero("data", "tokenizer", *text, "--vocab-size", VOCABULARY, "--out", model)
    run_hero("data", "tokenize", *text, "--tokenizer", model, "--out", folder / "data", "--valid-fraction", 0)
    return served_run(folder / "run", folder / "data"), model


@functools.cache
def served(*options: str) -> Served:
    """A server of the model, for all cases of this process."""
    run, pieces = trained_model()
    stack = ExitStack()
    atexit.register(stack.close)
    torch.set_num_threads(1)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    server = stack.enter_context(serving(run, "--max-batch", 8, *options))
    return Served(server, hero_moe.load(run, device="cpu"), tokenizer)


@dataclass
class Choice:
    text: str = ""
    finish_reason: str | None = None
    tokens: int = 0  # sampled
    logprobs: list[float | None] = field(default_factory=list)
    highest: list[float | None] = field(default_factory=list)  # log-probability at each position


def prompt_ids(of: Served, prompt: Any) -> list[list[int]]:
    """The prompts of a request; an empty text is the end token."""
    if isinstance(prompt, str):
        return [of.tokenizer.encode(prompt) or [of.tokenizer.eos_id()]]
    if isinstance(prompt[0], int):
        return [prompt]
    return [ids for one in prompt for ids in prompt_ids(of, one)]


def expected_choice(
    of: Served, body: dict[str, Any], prompt: list[int], number: int, ends: tuple[str, ...] = ()
) -> Choice:
    """Sequence `number` of a prompt. ends: texts that end it like the end token."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    sampling |= {name: body[name] for name in sampling if body.get(name) is not None}
    sampling["top_k"] = max(0, sampling["top_k"])
    limit = 16 if body.get("max_tokens") is None else body["max_tokens"]
    seed = (body["seed"] + number) % 2**64
    new = of.model.generate(prompt, max_tokens=limit, seed=seed, eos=(), **sampling) if limit else []
    stops = body.get("stop") or []
    stops = [stops] if isinstance(stops, str) else stops
    stops = [*stops, *(() if body.get("ignore_eos") else ends)]
    eos = () if body.get("ignore_eos") else (of.tokenizer.eos_id(),)
    reason, kept, text = "length", len(new), of.bytes_of(new).decode(errors="replace")
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    whole = ""  # characters so far
    for count, id in enumerate(new, 1):
        last = id in eos or count == len(new)
        whole += decoder.decode(of.bytes_of([id]), final=last)
        # The stop string that ends first, and of these the longest.
        found = [(place + len(stop), place) for stop in stops if (place := whole.find(stop)) >= 0]
        if found or id in eos:
            reason, kept, text = "stop", count, whole[: min(found)[1]] if found else whole
            break
    new = new[:kept]
    out = Choice("", reason, kept)
    shown = of.bytes_of(prompt).decode(errors="replace") if body.get("echo") else ""
    out.text = shown + text
    if body.get("logprobs") is not None:
        logs = of.model.logits(prompt + new).log_softmax(-1)
        first = 1 if body.get("echo") else len(prompt)
        ids = (prompt + new)[first:]
        out.logprobs = [logs[first + i - 1, id].item() for i, id in enumerate(ids)]
        out.highest = logs[first - 1 : first + len(ids) - 1].amax(-1).tolist()
        for values in (out.logprobs, out.highest):
            values[:0] = [None] if body.get("echo") else []
    return out


def assert_close(found: list[float | None], want: list[float | None]) -> None:
    assert [value is None for value in found] == [value is None for value in want]
    assert all(abs(a - b) <= TOLERANCE for a, b in zip(found, want) if a is not None and b is not None)


def send_at_once(
    of: Served, path: str, bodies: list[dict[str, Any]], check: Callable[[dict[str, Any], str], None]
) -> None:
    """Sends the requests in threads of their own and calls check(body, text of the response) for each."""
    answers: list[tuple[int, str]] = [(0, "")] * len(bodies)

    def send(i: int) -> None:
        answers[i] = of.server.request(path, bodies[i])[:2]

    run_threads(len(bodies), send)
    for body, (status, text) in zip(bodies, answers):
        assert status == 200, f"{body}: {text}"
        try:
            check(body, text)
        except AssertionError as error:
            raise AssertionError(f"{json.dumps(body)}: {error}\n{text[:2000]}") from error
