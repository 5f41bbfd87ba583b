"""The random case runner: sampling, counts and output."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import strategies as st

from random_cases import ROOT, Case, Rejected, Tally, command, drawn, expect_success, reproduce


def cases() -> st.SearchStrategy[Case]:
    return st.fixed_dictionaries(
        {"model.size": st.integers(0, 10**6), "router.text": st.just('it\'s "text"')}
    )


def check(case: Case, folder: Path) -> None:
    assert list(folder.iterdir()) == []
    (folder / "file").write_text(json.dumps(case))
    if case["model.size"] % 4 == 0:
        raise Rejected("model.size: found a multiple of 4")
    assert case["model.size"] % 4 != 1, "a remainder of 1"


def tally(sizes: list[int]) -> Tally:
    counts = Tally(check)
    for size in sizes:
        counts.run({"model.size": size, "router.text": 'it\'s "text"'})
    return counts


def test_cases_are_independent_and_reproducible() -> None:
    first, again, other = drawn(cases(), 100, 7), drawn(cases(), 100, 7), drawn(cases(), 100, 1000)
    assert len(first) == 100 and first == again
    values = {case["model.size"] for case in first + other}
    assert len(values) > 150 and 0 not in [case["model.size"] for case in first[:8]]


def test_all_cases_are_counted() -> None:
    counts = tally([2, 3, 4, 5, 6, 7])
    assert str(counts) == "6 drawn, 1 rejected, 1 wrong"
    with pytest.raises(AssertionError, match="6 drawn, 1 rejected, 1 wrong(.|\n)*a remainder of 1"):
        counts.assert_right()


def test_fails_with_too_many_rejected_cases() -> None:
    tally([2, 3, 4, 6, 7, 10]).assert_right()
    with pytest.raises(AssertionError, match="5 drawn, 1 rejected, 0 wrong"):
        tally([2, 3, 4, 6, 7]).assert_right()
    with pytest.raises(AssertionError):
        tally([]).assert_right()


@pytest.mark.parametrize(
    ("size", "status", "said"),
    [(5, 1, "wrong: a remainder of 1"), (4, 0, "rejected: model.size"), (2, 0, "right")],
)
def test_printed_command_reproduces_the_case(size: int, status: int, said: str) -> None:
    line = command(check, {"model.size": size, "router.text": 'it\'s "text"'})
    assert "\n" not in line
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done


def test_rejection_must_be_one_line_with_an_option_of_the_case() -> None:
    keys = ["router.window", "model.size"]
    expect_success(0, "warnings", keys)
    with pytest.raises(Rejected, match=r"router\.window: found 3"):
        expect_success(2, "hero: run.toml:3: router.window: found 3, expected 2\n", keys)
    for status, text in [
        (1, "hero: router.window: found 3\n"),
        (2, "hero: router.kind: found 3\n"),
        (2, "hero: router.window: found 3\nand more\n"),
        (2, ""),
        (-11, ""),
    ]:
        with pytest.raises(AssertionError):
            expect_success(status, text, keys)


if __name__ == "__main__":
    reproduce(check)
