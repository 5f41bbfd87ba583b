"""Checks the include order: a file in src/FOLDER includes only files of its own folder or an earlier one in FOLDERS.

Also rejects tensor headers in NO_TENSORS folders, and autograd's headers outside ops. Prints one line per
violation; exits with 1 if there are any.
"""

import re
import sys
from pathlib import Path

FOLDERS = "io config tokenizer data distributed ops model loss optim hf checkpoint train inference analysis perf study cli".split()
NO_TENSORS = {"io", "config", "tokenizer", "data"}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def violations(root: Path):
    """Yields "file:line: problem" for every violation below `root`, the folder `src`."""
    for path in sorted(p for p in root.rglob("*") if p.suffix in {".h", ".cpp", ".cu", ".cuh"}):
        inner = path.relative_to(root)
        folder = inner.parts[0]
        if folder not in FOLDERS:
            yield f"{path}: folder '{folder}' is not in the include order: {' '.join(FOLDERS)}"
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := INCLUDE.match(line):
                problem = check_include(root, folder, *match.groups())
                if problem:
                    yield f"{path}:{number}: {problem}"


def check_include(root: Path, folder: str, bracket: str, target: str):
    """Returns the problem of one include of a file in `folder`, or None."""
    if bracket == "<":
        if folder in NO_TENSORS and target.split("/")[0] in {"ATen", "c10", "torch"}:
            return f"{folder} includes <{target}>, but must not use tensors"
        if folder != "ops" and target.startswith("torch/csrc/autograd/"):
            return f"{folder} includes <{target}>, which is slow to parse; expected ops/autograd.h"
        return None
    if not (root / target).is_file():
        return f'"{target}" not found; include paths are relative to {root}'
    other = target.split("/")[0]
    if other in FOLDERS and FOLDERS.index(other) > FOLDERS.index(folder):
        return f'{folder} includes "{target}", but {other} is a later folder'
    return None


def main():
    found = list(violations(Path(__file__).resolve().parent.parent / "src"))
    for line in found:
        print(line)
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main()
