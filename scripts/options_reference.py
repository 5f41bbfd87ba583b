"""Prints docs/reference/options.md, made from `hero train --help`.

python scripts/options_reference.py [PROGRAM] > docs/reference/options.md    # PROGRAM: build/hero
"""

import re
import subprocess
import sys
from pathlib import Path

OPTION = re.compile(r"^  --(\w+\.[\w.]+) +(\w+) +(\S+)\n((?:      .*\n)+)", re.MULTILINE)
# The help, the allowed values in brackets, then remarks in parentheses.
TEXT = re.compile(r"(\S.*) \[(.+?)\]((?: \((?:also \S+|may change on resume)\))*)")
RESUME = " (may change on resume)"
HEADER = """# Options by section

Type, default and allowed values of every option. `scripts/options_reference.py` makes this page from
`hero train --help`, which shows the declarations in `src/config`; `tests/python/cli/test_options_reference.py` checks
that it is current. [options.md](../options.md) explains where each option has an effect.

Resume: a resumed run may use another value of a "free" option; a "fixed" option keeps the value that the run was
started with.
"""


def code(text: str) -> str:
    """The text as code in a table cell."""
    return f"`{text}`".replace("|", "\\|")


def row(match: re.Match[str]) -> str:
    """The table row of one option of the help."""
    key, kind, default, lines = match.groups()
    text = TEXT.fullmatch(" ".join(lines.split()))
    if not text:
        sys.exit(f"--{key}: found {' '.join(lines.split())!r}, expected help [values] (remarks)")
    help_text, values, remarks = text.groups()
    aliases = re.findall(r"\(also (\S+)\)", remarks)
    allowed = ", ".join(map(code, values.split("|"))) if "|" in values else values
    resume = "free" if RESUME in remarks else "fixed"
    description = help_text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    if aliases:
        description += "; also " + ", ".join(map(code, aliases))
    return f"| {code(key)} | {kind} | {code(default)} | {allowed} | {resume} | {description} |"


def page(help_text: str) -> str:
    """The page for the output of `hero train --help`."""
    out = HEADER
    sections = re.split(r"^\[(\w+)\]\n", help_text, flags=re.MULTILINE)[1:]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        rows = [row(match) for match in OPTION.finditer(body)]
        if len(rows) != len(re.findall(r"^  --", body, re.MULTILINE)):
            sys.exit(
                f"[{name}]: found options in another format, expected '  --key type default' and help lines"
            )
        out += f"\n## {name}\n\n| option | type | default | values | resume | description |\n"
        out += "|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    return out


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    program = sys.argv[1] if len(sys.argv) > 1 else str(root / "build" / "hero")
    done = subprocess.run([program, "train", "--help"], capture_output=True, text=True, check=True)
    sys.stdout.write(page(done.stdout))


if __name__ == "__main__":
    main()
