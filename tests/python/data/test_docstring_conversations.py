"""examples/docstring_conversations.py: questions and answers from docstrings, without importing the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from program import ROOT

SOURCE = '''"""A module."""
raise RuntimeError("imported")

def mean(values):
    """Returns the mean of `values`. It is a number! What else?

    More text."""

def short():
    """Too short."""

def _private():
    """Returns a value that nobody sees."""

class Graph:
    """Stores nodes and edges with :class:`Node` objects."""

    def size(self):
        """>>> example of a call without prose."""
'''


def test_questions_and_answers(tmp_path: Path) -> None:
    package = tmp_path / "tiny"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "broken.py").write_text("def f(:\n")
    (package / "tests" / "test_it.py").write_text(SOURCE)
    script = ROOT / "examples" / "docstring_conversations.py"
    outs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for out in outs:
        subprocess.run([sys.executable, script, "--out", out, package], check=True)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    found = {}
    for line in outs[0].read_text().splitlines():
        question, answer = json.loads(line)["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        found[question["content"]] = answer["content"]
    assert sorted(found.values()) == [
        "Returns the mean of values. It is a number! What else?",
        "Stores nodes and edges with Node objects.",
    ]
    assert all("tiny.mean" in question or "tiny.Graph" in question for question in found)
    failed = subprocess.run(
        [sys.executable, script, "--out", outs[0], "no-such-package"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2 and "no-such-package: no such folder" in failed.stderr
