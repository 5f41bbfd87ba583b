"""Conversations for supervised fine-tuning from the docstrings of installed Python packages.

    .venv/bin/python examples/docstring_conversations.py --out data/docstrings.jsonl sympy networkx numpy torch

A line of the output is {"messages": [question, answer]}: "What does numpy.mean do?", answered with the first
sentences of the docstring. The packages are not imported: their sources are parsed. Nothing is downloaded.
"""

import argparse
import ast
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

QUESTIONS = ("What does {} do?", "Explain {}.", "What is {} for?", "Describe {} briefly.")
MAX_CHARACTERS = 300  # of an answer


def docstrings(package: Path) -> Iterator[tuple[str, str]]:
    """The qualified name and the docstring of every public function, class and method below a folder."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if "tests" in parts or "testing" in parts:
            continue
        module = ".".join(part for part in parts if part != "__init__")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        yield from definitions(tree, module)


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Those of a module or class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)) or child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        if text := ast.get_docstring(child):
            yield name, text
        if isinstance(child, ast.ClassDef):
            yield from definitions(child, name)


def answer(docstring: str) -> str:
    """The first paragraph in whole sentences, as plain text; "" if it is not prose."""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    paragraph = re.sub(r":\w+:`~?([^`]*)`", r"\1", paragraph).replace("``", "").replace("`", "")
    sentences = re.findall(r"[^.!?]+[.!?](?=\s|$)", paragraph)
    found = ""
    for sentence in sentences:
        if len(found) + len(sentence) > MAX_CHARACTERS:
            break
        found += sentence
    found = found.strip()
    prose = re.fullmatch(r"[A-Z][A-Za-z].*", found) and len(found.split()) >= 4 and ">>>" not in found
    return found if prose else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", nargs="+", help="names of installed packages, or folders")
    parser.add_argument("--out", required=True, type=Path, help="JSON lines to write")
    parser.add_argument("--seed", type=int, default=1234, help="seed of the order and of the questions")
    given = parser.parse_args()
    installed = Path(sysconfig.get_path("purelib"))
    pairs: dict[str, str] = {}
    for name in given.packages:
        folder = Path(name) if Path(name).is_dir() else installed / name
        if not folder.is_dir():
            parser.error(f"{name}: no such folder, and no package in {installed}")
        pairs |= {name: text for name, found in docstrings(folder) if (text := answer(found))}
    rng = random.Random(given.seed)
    names = sorted(pairs)
    rng.shuffle(names)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", encoding="utf-8") as out:
        for name in names:
            question = rng.choice(QUESTIONS).format(name)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": pairs[name]}]
            out.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    print(f"{given.out}: {len(names)} conversations")


if __name__ == "__main__":
    main()
