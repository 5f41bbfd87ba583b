"""The loop of an engine in its own process: a request per line of standard input, a response per line of standard
output. Whatever else the engine prints goes to standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# New ids for every prompt, decoded greedily.
Generate = Callable[[list[list[int]], int], list[list[int]]]


def serve(load: Callable[[], Generate]) -> None:
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    generate = load()

    def respond(value: dict[str, Any]) -> None:
        responses.write(json.dumps(value) + "\n")

    respond({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        ids = generate(request["prompts"], request["new"])
        respond({"seconds": time.perf_counter() - begin, "ids": ids})
