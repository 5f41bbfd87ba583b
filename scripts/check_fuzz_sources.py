"""Checks tests/fuzz/sources.txt, the files that scripts/fuzz.sh compiles: they exist, and for every header that they or
the fuzz targets include, directly or not, they contain the source file with its name.

Prints one line per violation; exits with 1 if there are any.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def missing(root: Path, listed: set[Path]) -> dict[Path, Path]:
    """Source files that are not listed, each with a file that includes its header."""
    todo = [*sorted(listed), *sorted((root / "tests/fuzz").glob("*_fuzz.cpp"))]
    seen: set[Path] = set()
    found: dict[Path, Path] = {}
    while todo:
        file = todo.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
            for header in (root / "src" / name, root / "tests" / name):
                source = header.with_suffix(".cpp")
                if header.is_file() and source.is_file() and source not in listed:
                    found.setdefault(source, file)
                todo.append(header)
    return found


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    listing = root / "tests/fuzz/sources.txt"
    listed = {root / line for line in listing.read_text(encoding="utf-8").split()}
    problems = [
        f"{file.relative_to(root)}: listed, but not found" for file in sorted(listed) if not file.is_file()
    ]
    problems += [
        f"{source.relative_to(root)}: not listed, but {user.relative_to(root)} includes its header"
        for source, user in sorted(missing(root, listed).items())
    ]
    for problem in problems:
        print(f"{listing.relative_to(root)}: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
