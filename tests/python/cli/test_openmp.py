"""How long OpenMP threads spin: `hero` and `import hero_moe` set the same limit, unless the user set one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from program import PROGRAM

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SHOW = f"import os\nfor name in {NAMES}: print(os.environ.get(name, 'unset'))"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`hero` in a folder of its own, where the program that it executes prints the variables."""
    folder = tmp_path_factory.mktemp("launcher")
    (folder / "program").mkdir()
    program = folder / "program" / "hero"
    program.write_text(f"#!{sys.executable}\n{SHOW}\n")
    program.chmod(0o755)
    return Path(shutil.copy(PROGRAM, folder / "hero"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["8000", "unset"]),
        ({"GOMP_SPINCOUNT": "7"}, ["7", "unset"]),
        ({"OMP_WAIT_POLICY": "active"}, ["unset", "active"]),
    ],
)
def test_spinning_is_limited_unless_the_user_says_otherwise(
    launcher: Path, given: dict[str, str], expected: list[str]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES} | given
    commands = ([launcher, "train"], [sys.executable, "-c", f"import hero_moe\n{SHOW}"])
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected, command


def test_the_limit_is_set_before_libgomp_is_loaded() -> None:
    code = "import sys, hero_moe\nassert 'torch' not in sys.modules\nimport torch"
    subprocess.run([sys.executable, "-c", code], check=True)
