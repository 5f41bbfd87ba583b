"""The page of all targets (docs/results/cpu.md) and the files it is written from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from program import ROOT

sys.path.append(str(ROOT / "bench"))
import machine
from results import Measured, Processor, load, load_all, overview
from rounds import Target, paired_ratio
from run import BENCHMARKS, ESSENTIAL, PAGES

TITLE = BENCHMARKS[0][0]


def processor(folder: Path, *targets: Target) -> Processor:
    folder.mkdir()
    found = Processor(folder, f"a machine with {folder.name}", {TITLE: Measured("2026-01-02", list(targets))})
    found.save()
    return found


@pytest.fixture
def results(tmp_path: Path) -> Path:
    speed = {"what": "speed", "command": "bench/speed.py", "ceiling": [2.0, 3.0]}
    processor(tmp_path / "avx2", Target(bound=2.5, values=[1.0, 3.0, 2.0], **speed))
    wide = Target(bound=4.0, values=[4.0], **speed)
    memory = Target("memory", 10, [11.0], "bench/memory.py", at_least=False, unit=" MiB", places=0)
    processor(tmp_path / "avx512", wide, memory)
    return tmp_path


def test_results_are_read_as_written(results: Path) -> None:
    found = load(results / "avx2")
    assert found and found.machine == "a machine with avx2"
    assert found.benchmarks[TITLE].date == "2026-01-02"
    [target] = found.targets
    assert (target.median, target.met, target.reachable) == (2.0, False, True)
    assert load(results / "amx") is None


def test_page_lists_every_target_with_figure_spread_and_processor(results: Path) -> None:
    page = overview(load_all(results), PAGES, {}, trial=False)
    rows = [line for line in page.splitlines() if line.startswith("|") and ("AVX" in line)]
    assert rows == [
        "| AVX-512 | a machine with avx512 | 2026-01-02 | 1 of 2 |  |",
        "| AVX2 | a machine with avx2 | 2026-01-02 | 0 of 1 |  |",
        "| speed | >= 4 | 4.00 | 2.50 (2.00 to 3.00) | AVX-512 | met |",
        "|  | >= 2.5 | 2.00 (1.00 to 3.00) | 2.50 (2.00 to 3.00) | AVX2 | **missed** |",
        "| memory | <= 10 MiB | 11 MiB |  | AVX-512 | **missed** |",
    ]
    assert "- AVX-512: memory: 11 MiB, target <= 10 MiB" in page
    assert "- AVX2: speed: 2.00 (1.00 to 3.00), target >= 2.5" in page
    assert "`bench/speed.py`" in page and f"(avx2/{PAGES[0][1]})" in page
    assert "## Failed" not in page and "Trial run" not in page


def test_processors_of_one_instruction_set_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is measured first has the folder of the instruction set."""
    processors = {
        "avx512": ("GenuineIntel", "6", "85", "avx512"),
        "avx512-slow-bf16": ("GenuineIntel", "6", "207", machine.SLOW_BF16),
        "avx2": ("AuthenticAMD", "25", "1", "avx2"),
        "avx2-amd-23-1": ("AuthenticAMD", "23", "1", "avx2"),
        "avx2-intel-6-63": ("GenuineIntel", "6", "63", "avx2"),
        "avx512-amd-25-17": ("AuthenticAMD", "25", "17", "avx512"),
        "avx2-other-0-0": ("", "", "", "avx2"),
    }
    for _ in range(2):  # the second time to where the results are
        for folder, (vendor, family, model, found) in processors.items():
            info = {"vendor_id": vendor, "cpu family": family, "model": model, "model name": ""}
            monkeypatch.setattr(machine, "cpuinfo", info.__getitem__)
            monkeypatch.setattr(machine, "instruction_set", lambda found=found: found)
            chosen = machine.processor_folder(tmp_path)
            assert chosen == tmp_path / folder
            chosen.mkdir(exist_ok=True)
            Processor(chosen, machine.machine()).save()
    (tmp_path / "avx2-notes").mkdir()
    assert [(found.folder.name, found.name) for found in load_all(tmp_path)] == [
        ("avx512-slow-bf16", "AVX-512, slow bf16"),
        ("avx512", "AVX-512"),
        ("avx512-amd-25-17", "AVX-512, AMD family 25 model 17"),
        ("avx2", "AVX2"),
        ("avx2-amd-23-1", "AVX2, AMD family 23 model 1"),
        ("avx2-intel-6-63", "AVX2, Intel family 6 model 63"),
        ("avx2-other-0-0", "AVX2, other family 0 model 0"),
    ]


def test_page_names_failed_benchmarks(results: Path) -> None:
    page = overview(load_all(results), PAGES, {"Latency": "exit status 1"}, trial=True)
    assert "## Failed\n\n- Latency: exit status 1\n" in page and "Trial run" in page


def test_page_of_a_processor_whose_benchmarks_failed(tmp_path: Path) -> None:
    (tmp_path / "avx2").mkdir()
    Processor(tmp_path / "avx2", "a machine").save()
    page = overview(load_all(tmp_path), PAGES, {TITLE: "exit status 1"}, trial=False)
    assert "| AVX2 | a machine |  | 0 of 0 |  |" in page and f"- {TITLE}: exit status 1" in page


def test_stored_page_matches_the_stored_results() -> None:
    results = ROOT / "docs/results"
    assert (results / "cpu.md").read_text() == overview(load_all(results), PAGES, {}, trial=False)


def test_pages_of_stored_results_exist() -> None:
    pages = dict(PAGES)
    for found in load_all(ROOT / "docs/results"):
        for title in found.benchmarks:
            assert (found.folder / pages[title]).is_file(), f"{found.name}: {title}"


@pytest.mark.parametrize("page", ESSENTIAL)
def test_essential_benchmarks_have_their_options(page: str) -> None:
    [words] = [words for _, name, words in BENCHMARKS if name == page]
    command = [sys.executable, str(ROOT / "bench" / words[0]), *words[1:], *ESSENTIAL[page], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for option in [word for word in ESSENTIAL[page] if word.startswith("--")]:
        assert f"{option} " in done.stdout


def test_paired_ratio_calls_in_alternating_order() -> None:
    calls: list[str] = []

    def measure(name: str, value: float) -> float:
        calls.append(name)
        return value

    assert paired_ratio(lambda: measure("a", 6.0), lambda: measure("b", 2.0), seconds=0.05) == 3.0
    pairs = list(zip(calls[::2], calls[1::2], strict=True))
    assert pairs == [("a", "b") if i % 2 else ("b", "a") for i in range(len(pairs))]


def test_paired_ratio_measures_at_least_so_many_pairs() -> None:
    values = iter([4.0, 2.0, 3.0, 3.0, 1.0, 5.0])  # second first, then first first, then second first
    assert paired_ratio(lambda: next(values), lambda: next(values), seconds=0, pairs=3) == 1.0
    assert list(values) == []
