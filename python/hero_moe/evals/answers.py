"""A model that saves its answers to a file, so that an interrupted evaluation resumes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from tqdm import tqdm

from hero_moe.json_text import parse_json

_ITEMS_PER_WRITE = {"loglikelihood": 128, "generate_until": 32}
"""Items answered between two writes. Items and batches are the same in an interrupted run."""


class RecordedLM(LM):
    """Answers from the file if present, else from the model.

    Args:
        open_model: called for the first missing answer.
        path: the file: `header` as its first line, then one line for each group of items.
        label: for the progress bar, which shows items, items per second, and the time left.
    """

    def __init__(self, open_model: Callable[[], LM], path: Path, header: dict[str, Any], label: str) -> None:
        super().__init__()
        self._open_model, self._path, self._label = open_model, path, label
        self._saved = self._read(header)
        if not self._saved:
            path.write_text(json.dumps(header) + "\n")

    def _read(self, header: dict[str, Any]) -> list[dict[str, Any]]:
        """The complete lines; truncates an incomplete last line."""
        if not self._path.is_file():
            return []
        content = self._path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            os.truncate(self._path, len(complete))
        try:
            lines = [parse_json(line) for line in complete.splitlines()]
        except ValueError as error:
            raise ValueError(f"{self._path}: invalid JSON ({error}); --restart starts over") from error
        return lines[1:] if lines and lines[0] == header else []

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [(logprob, greedy) for logprob, greedy in self._answers("loglikelihood", requests)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return self._answers("generate_until", requests)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("no benchmark needs it")

    def _answers(self, kind: str, requests: list[Instance]) -> list[Any]:
        items: dict[tuple[Any, ...], list[int]] = {}
        for number, request in enumerate(requests):
            items.setdefault((request.task_name, request.doc_id), []).append(number)
        # Longest first: batches have items of similar length, and running out of memory shows at once.
        order = sorted(items.values(), key=lambda numbers: -len(requests[numbers[0]].args[0]))
        answers: list[Any] = [None] * len(requests)
        size = _ITEMS_PER_WRITE[kind]
        with tqdm(total=len(order), desc=self._label, unit="item", mininterval=1, disable=False) as bar:
            for step, begin in enumerate(range(0, len(order), size)):
                numbers = [number for item in order[begin : begin + size] for number in item]
                chunk = [requests[number] for number in numbers]
                asked = hashlib.sha256(json.dumps([request.args for request in chunk]).encode()).hexdigest()
                if step < len(self._saved):
                    entry = self._saved[step]
                    if not _is_entry(entry, len(chunk)):
                        expected = f"expected {len(chunk)} answers; --restart starts over"
                        raise ValueError(f"{self._path}: line {step + 2}: {expected}")
                    if entry["asked"] != asked:
                        hint = "found answers to other prompts, expected the same (--restart discards them)"
                        raise ValueError(f"{self._path}: {hint}")
                    bar.initial += len(order[begin : begin + size])
                else:
                    entry = {"asked": asked, "answers": self._ask(kind, chunk)}
                    with self._path.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(entry, ensure_ascii=False) + "\n")
                        out.flush()
                        os.fsync(out.fileno())
                bar.update(len(order[begin : begin + size]))
                for number, answer in zip(numbers, entry["answers"], strict=True):
                    answers[number] = answer
        return answers

    def _ask(self, kind: str, requests: list[Instance]) -> list[Any]:
        model = self._open_model()
        if kind == "generate_until":
            requests = [_limit_generation(model, request) for request in requests]
        return getattr(model, kind)(requests, disable_tqdm=True)


def _is_entry(value: Any, answers: int) -> bool:
    """Whether this is a line of the file with as many answers."""
    if not isinstance(value, dict) or not isinstance(value.get("asked"), str):
        return False
    found = value.get("answers")
    return isinstance(found, list) and len(found) == answers


def _limit_generation(model: LM, request: Instance) -> Instance:
    """Reserves half of the model's positions for the prompt, regardless of the task's max_gen_toks."""
    prompt, options = request.args
    limit = max(1, model.max_length // 2)
    asked = options.get("max_gen_toks", model.max_gen_toks)
    return replace(request, arguments=(prompt, options | {"max_gen_toks": min(asked, limit)}))
