"""docs/reference/options.md is the page that scripts/options_reference.py makes from `hero train --help`."""

from __future__ import annotations

import re
import subprocess
import sys

from program import PROGRAM, ROOT, configuration_keys

PAGE = ROOT / "docs" / "reference" / "options.md"
SCRIPT = ROOT / "scripts" / "options_reference.py"


def test_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, SCRIPT, PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert PAGE.read_text() == made, f"run {SCRIPT.name} > docs/reference/options.md"


def test_page_lists_every_option_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| `(\S+)` \|", PAGE.read_text(), re.MULTILINE)
    listed = {key: (kind, default) for key, kind, default in rows}
    assert len(listed) == len(rows)
    assert listed == {key: (kind, default) for key, (kind, default, _, _) in configuration_keys().items()}


def test_resume_column_agrees_with_the_guide() -> None:
    """docs/options.md, which a test compares with a resumed run."""
    guide = dict(
        re.findall(
            r"^\| `([\w.]+)` \|(?: .*? \|){3} (free|fixed)", (ROOT / "docs" / "options.md").read_text(), re.M
        )
    )
    page = dict(re.findall(r"^\| `([\w.]+)` \|.* \| (free|fixed) \| ", PAGE.read_text(), re.MULTILINE))
    assert page == guide
