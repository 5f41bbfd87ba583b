"""The progress of `hero train`: one line that is rewritten on a terminal, lines every train.log_every steps
elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from program import ENVIRONMENT, HERO, PROGRAM, metrics, run_hero, training

STEPS = 99  # two digits: the narrowest terminals show them
SETTINGS = HERO | {"train.steps": STEPS, "eval.every": 33, "eval.batches": 2}
PARTS = [
    rf"step (\d+)/{STEPS}",
    r"loss (\d+\.\d{4})",
    r"valid (\d+\.\d{4})",
    r"([\d,]+|\d+\.\d+) tok/s",
    r"left (\d+:\d\d)",
    r"expert (\d+(?:\.\d)?)%",
]


def terminal_output(words: list[Any], columns: int) -> tuple[int, str]:
    """Exit status of `hero`, and all that it wrote to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [PROGRAM, *map(str, words)], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 4096):
            written += block
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(60), written.decode()


def displayed(written: str, columns: int) -> tuple[list[str], list[str]]:
    """The lines that a terminal shows in the end, and every state of a line that is rewritten in place."""
    lines, states, line, column = [], [], "", 0
    for token in re.findall(r"\x1b\[K|[^\x1b]|\x1b", written):
        if token == "\n":
            lines.append(line)
            line = ""
        elif token == "\r":
            column = 0
        elif token == "\x1b[K":
            line = line[:column]
            states.append(line)
        else:
            assert token.isprintable(), repr(token)
            line = line[:column] + token + line[column + 1 :]
            column += 1
            # The program's other lines may wrap; the rewritten one must leave the cursor's column free.
            assert not line.startswith("step ") or column < columns
    assert line == "", "the last line is not ended"
    return lines, states


def shown_parts(state: str) -> list[str]:
    """The parts of a status line; `left` and `valid` are missing at first or in the end."""
    found = state.split("  ")
    patterns = [p for p in PARTS if any(re.fullmatch(p, part) for part in found)]
    assert len(patterns) == len(found), state
    assert all(re.fullmatch(p, part) for p, part in zip(patterns, found)), state
    return found


def test_one_line_on_a_terminal(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, written = terminal_output(training(run, data, SETTINGS), columns=200)
    assert status == 0, written
    lines, states = displayed(written, 200)
    assert len(states) > 1
    assert [line for line in lines if line.startswith("step ")] == [states[-1]]
    assert states[-1] == lines[-1]
    logged = {line["step"]: line for line in metrics(run)}
    valid = None
    for state in states:
        parts = shown_parts(state)
        step = int(re.fullmatch(PARTS[0], parts[0])[1])  # type: ignore[index]
        line = logged[step]
        assert parts[1] == f"loss {line['loss']:.4f}"
        validated = [s for s in logged if s <= step and "valid_loss" in logged[s]]
        valid = f"valid {logged[validated[-1]]['valid_loss']:.4f}" if validated else None
        assert (parts[2] == valid) if valid else not parts[2].startswith("valid")
        assert any(part.endswith(" tok/s") for part in parts)
        assert any(part.startswith("left ") for part in parts) == (step < STEPS)
        share = 100 * line["max_expert_share"]
        assert parts[-1] == f"expert {share:.{1 if share < 10 else 0}f}%"
    assert shown_parts(states[-1])[0] == f"step {STEPS}/{STEPS}" and valid


@pytest.mark.parametrize("columns", [62, 48, 40, 24, 12])
def test_narrow_terminal(data: Path, tmp_path: Path, columns: int) -> None:
    """Parts that do not fit are dropped as a whole, the last ones first; the line never wraps."""
    run = tmp_path / "run"
    status, written = terminal_output(training(run, data, SETTINGS), columns)
    assert status == 0, written
    lines, states = displayed(written, columns)
    assert [line for line in lines if line.startswith("step ")] == [states[-1]]
    dropped = False
    for state in states:
        parts = shown_parts(state)
        step = int(re.fullmatch(PARTS[0], parts[0])[1])  # type: ignore[index]
        missing = {PARTS[2]: step < SETTINGS["eval.every"], PARTS[4]: step == STEPS}
        possible = [p for p in PARTS if not missing.get(p)]
        assert all(re.fullmatch(p, part) for p, part in zip(possible, parts)), state
        assert len(state) < columns and (len(parts) > 1) == (columns >= 24), state
        dropped |= len(parts) < len(possible)
    assert dropped and states[-1].startswith(f"step {STEPS}/{STEPS}")


@pytest.mark.parametrize("settings", [{}, {"train.steps": 21}], ids=["multiple", "last step between"])
def test_lines_without_a_terminal(data: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    """After the first step, every train.log_every steps and after the last one."""
    run = tmp_path / "run"
    more = {"train.steps": 28, "train.log_every": 7, "eval.every": 10, "eval.batches": 1} | settings
    result = run_hero(*training(run, data, HERO | more))
    steps = more["train.steps"]
    lines = [line for line in result.stderr.splitlines() if line.startswith("step ")]
    assert "\r" not in result.stderr and "\x1b" not in result.stderr
    logged = {line["step"]: line for line in metrics(run)}
    expected = [1, *range(7, steps, 7), steps]
    assert [line.split("  ")[0] for line in lines] == [f"step {step}/{steps}" for step in expected]
    for step, line in zip(expected, lines):
        parts = line.split("  ")
        assert parts[1] == f"loss {logged[step]['loss']:.4f}"
        assert len(line) <= 80
        validated = [s for s in logged if s <= step and "valid_loss" in logged[s]]
        valid = f"valid {logged[validated[-1]]['valid_loss']:.4f}" if validated else None
        assert [part for part in parts if part.startswith("valid ")] == ([valid] if valid else [])


def test_resumed_run_and_log_every_larger_than_the_run(data: Path, tmp_path: Path) -> None:
    """The first step of each process and the last one."""
    run = tmp_path / "run"
    run_hero(*training(run, data, HERO | {"train.steps": 3, "optim.schedule": "constant"}))
    words = ["--resume", "--train.steps=8", "--train.log_every=1000"]
    result = run_hero("train", "--run", run, *words)
    lines = [line.split("  ")[0] for line in result.stderr.splitlines() if line.startswith("step ")]
    assert lines == ["step 4/8", "step 8/8"]


def test_error_message_starts_on_a_new_line(data: Path, tmp_path: Path) -> None:
    """A loss that is not finite, after steps whose line is not ended."""
    settings = {"train.steps": 200, "optim.lr": 1e30, "optim.warmup_steps": 0, "optim.schedule": "constant"}
    status, written = terminal_output(training(tmp_path / "run", data, settings), columns=200)
    assert status == 1
    lines, _ = displayed(written, 200)
    assert lines[-1].startswith(f"hero: {tmp_path}/run: step ")
