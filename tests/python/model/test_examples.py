"""The examples run and reduce the loss."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from program import ROOT


def output_of(name: str, *words: Any, cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "examples" / name, *map(str, words)]
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_router_in_a_moe_layer(tmp_path: Path) -> None:
    text = output_of("router_in_a_moe_layer.py", "--steps", 120, cwd=tmp_path)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", text)]
    assert len(losses) == 6 and losses[0] > 1.0 and losses[-1] < 0.5  # log 16 = 2.77 is the loss of guessing
    assert "layer 3: " in text and "reads layers (1, 2)" in text


def test_finetune_with_trainer(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"{i} + {i} = {2 * i}\n" for i in range(400)))
    words = text, "--steps", 30, "--out", tmp_path / "model"
    printed = output_of("finetune_with_trainer.py", *words, cwd=tmp_path)
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", printed).groups())
    assert last < first - 0.5
    grown = [float(x) for x in re.findall(r"\|W_R\| ([\d.]+)", printed)]
    assert len(grown) == 4 and grown[0] == 0.0 and min(grown[1:]) > 0.0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["hero_router"]["window"] == 2
