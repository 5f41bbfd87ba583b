"""`python -m hero_moe.chat_renderer`: renders chat templates for `hero serve` and `hero chat`.

Reads one JSON object per line from stdin and answers each with one line on stdout. The first line selects the
template, `{"template": JINJA}` or the `{"name": ...}` of a built-in one, with `special_tokens` (their texts by
name) and `max_bytes` of a rendered text; its answer is `{"template": JINJA}`. Each further line is
`{"messages": [...], "add_generation_prompt": BOOL}`, answered with `{"text": ...}`. An answer
`{"error": MESSAGE}` rejects the template or the messages.

Templates come from model folders of others. They run in Jinja's sandbox, and before the process reads the
first line it gives up files, network, processes and threads (`hero_moe.system_calls`), and limits its memory
and the processor time of each line. It ends when stdin does.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
import jinja2.debug  # imported by Jinja when a template fails

from hero_moe.data.chat import BUILT_IN, ChatTemplate
from hero_moe.data.errors import DataError
from hero_moe.system_calls import restrict_system_calls

MEMORY = 512 << 20
"""Bytes of address space."""
PROCESSOR_SECONDS = 10.0
"""Of a line; more end the process."""


class Renderer:
    """A template with the special tokens of a tokenizer."""

    def __init__(self, request: dict[str, Any]) -> None:
        name = request.get("name")
        if name is not None and name not in BUILT_IN:
            raise DataError(f"found {name!r}, expected a file or one of {', '.join(BUILT_IN)}")
        self.source: str = request["template"] if name is None else BUILT_IN[name]
        self._template = ChatTemplate(self.source)
        self._special_tokens = request["special_tokens"]
        self._max_bytes = request["max_bytes"]

    def text(self, request: dict[str, Any]) -> str:
        """The text of a conversation. Raises `DataError` if it is too long or not Unicode, and whatever the
        template raises."""
        found: list[str] = []
        size = 0
        parts = self._template.parts(
            request["messages"],
            self._special_tokens,
            add_generation_prompt=request["add_generation_prompt"],
        )
        for part in parts:
            try:
                size += len(part.encode())
            except UnicodeEncodeError as error:
                raise DataError("the text has an unpaired surrogate, expected Unicode text") from error
            if size > self._max_bytes:
                raise DataError(
                    f"the text has more than {self._max_bytes} bytes, which do not fit into the model's length"
                )
            found.append(part)
        return "".join(found)


def answer(line: bytes, renderer: Renderer | None) -> tuple[dict[str, str], Renderer | None]:
    """The answer to a line, and the renderer for the next ones."""
    try:
        request = json.loads(line)
        if renderer is None:
            renderer = Renderer(request)
            return {"template": renderer.source}, renderer
        return {"text": renderer.text(request)}, renderer
    except MemoryError:
        return {"error": f"the template needs more than {MEMORY >> 20} MiB of memory"}, renderer
    except (jinja2.TemplateError, DataError) as error:
        return {"error": _one_line(error) or type(error).__name__}, renderer
    except Exception as error:  # expressions of a template may raise anything
        return {"error": f"{type(error).__name__}: {_one_line(error)}"}, renderer


def _one_line(error: Exception) -> str:
    """The message, which a template can choose."""
    text = str(error).removeprefix("chat template: ")
    return " ".join(text.encode(errors="replace").decode().split())[:1000]


def _restrict() -> None:
    os.closerange(3, 65536)
    # What would be loaded later: the time zone, and the codec of string literals in templates.
    datetime.now().strftime("%c")
    codecs.lookup("unicode-escape")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        restrict_system_calls()
    except OSError as error:
        print(f"warning: chat template: its system calls are not restricted ({error})", file=sys.stderr)


def main() -> None:
    """Answers lines until the end of stdin."""
    _restrict()
    renderer: Renderer | None = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)  # its signal ends the process
        found, renderer = answer(line, renderer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(found, ensure_ascii=False).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
