"""Files and page of an analysis, the blocks that the page embeds, and rejected input."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file

from analysis_folder import write_analysis
from conftest import write_run
from hero_moe.analysis import explorer
from hero_moe.analysis.__main__ import NAMES, main
from hero_moe.analysis.contents import FORMS, Analysis
from hero_moe.analysis.reading import load_analysis


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 layers in two stages, 16 experts, top-2; with data and a baseline."""
    path = tmp_path_factory.mktemp("analysis") / "small"
    write_analysis(path, stages=[0, 0, 0, 1, 1, 1])
    return path


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Analysis:
    return load_analysis(folder)


def test_int8_error_is_at_most_half_a_step(analysis: Analysis) -> None:
    for block in analysis.coupling["centered"].blocks.values():
        step, values = explorer.quantized(block)
        assert step == pytest.approx(np.abs(block).max() / 127, rel=1e-6)
        assert np.abs(values * step - block).max() <= 0.5001 * step
    assert explorer.quantized(np.zeros((2, 2), np.float32))[1].tolist() == [[0, 0], [0, 0]]


def test_embedded_means_restore_raw_blocks(analysis: Analysis) -> None:
    raw, centered = (analysis.coupling[form].blocks for form in FORMS)
    for place, block in raw.items():
        rows, columns = explorer.removed_means(block, centered[place])
        np.testing.assert_allclose(
            centered[place] + rows[:, None] + columns, block, rtol=0, atol=1e-7 * np.abs(block).max()
        )


def test_page_embeds_as_many_blocks_as_fit(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explorer.embedded_pairs(analysis) == set(analysis.depth_factor)
    monkeypatch.setattr(
        explorer, "MAX_BLOCK_CHARACTERS", 4 * (344 + 2 * 88)
    )  # base64 of 256 bytes and two times 64
    assert explorer.embedded_pairs(analysis) == {(2, 1), (3, 2), (5, 4), (6, 5)}
    assert "The page contains 4 of 6 blocks" in explorer.coupling_section(analysis)
    missing = [pair for pair in explorer.payload(analysis)["pairs"] if "block" not in pair]
    assert [(pair["layer"], pair["from"]) for pair in missing] == [(3, 1), (6, 4)]


def test_the_shape_of_the_paper_fits_on_a_page(analysis: Analysis) -> None:
    assert (
        30 * 29 // 2 * explorer.embedded_size(128) < explorer.MAX_BLOCK_CHARACTERS
    )  # even with history across stages


def test_files_and_page(folder: Path, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "baseline", steps=20), write_run(tmp_path / "hero", kind="hero", steps=20)]
    (folder / "figures").mkdir()
    (folder / "figures" / "mine.png").write_bytes(b"kept")
    assert main([str(folder), "--runs", *map(str, runs)]) == 0
    written = {path.name for path in (folder / "figures").iterdir()}
    assert written == {f"{name}.{extension}" for name in NAMES for extension in ("png", "svg")} | {"mine.png"}
    for name in NAMES:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
        ElementTree.parse(folder / "figures" / f"{name}.svg")
    text = (folder / "report.html").read_text()
    assert "http" not in text
    on_page = set(re.findall(r'id="figure-([a-z-]+)"', text))
    assert on_page == set(NAMES) - {"loss", "loss-advantage"}
    for name in NAMES:
        form = "centered" if name.endswith("-centered") else "raw" if f"{name}-centered" in NAMES else None
        assert (f'id="figure-{name}" class="form-{form}"' in text) == (form is not None)
    explanation = text[text.index("Two changes of these weights") :].split("</p>")[0]
    assert explanation.count(".") == 2 and "centered weights" in explanation
    assert "<b>&" not in text  # a token's text
    assert sorted(path.name for path in folder.iterdir()) == [
        "analysis.json", "analysis.safetensors", "figures", "report.html",
    ]  # fmt: skip


def test_without_data_the_page_notes_it_and_old_figures_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    write_analysis(folder, layers=3, experts=4, data=False)
    (folder / "figures").mkdir()
    (folder / "figures" / "removal.svg").write_text("from an analysis with data")
    assert main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert text.count("need a forward pass") == 1 and 'id="tokens"' not in text
    names = {path.stem for path in (folder / "figures").iterdir()}
    assert names == set(NAMES[: NAMES.index("expert-utilisation")])


def test_no_visible_predecessors(tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    write_analysis(folder, layers=2, experts=4, stages=[0, 1], baseline=False, texts=False, tokens=2)
    assert main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert "there is no history to show" in text and 'id="tokens"' in text
    assert {path.stem for path in (folder / "figures").iterdir()} == {"expert-utilisation", "routing-paths"}


def change(*keys: str | int, value: Any = None, drop: bool = False) -> Callable[[Path], None]:
    """A function that changes or removes one value of a folder's analysis.json."""

    def apply(folder: Path) -> None:
        path = folder / "analysis.json"
        content = json.loads(path.read_text())
        home = content
        for key in keys[:-1]:
            home = home[key]
        if drop:
            del home[keys[-1]]
        else:
            home[keys[-1]] = value
        path.write_text(json.dumps(content))

    return apply


def cut(name: str) -> Callable[[Path], None]:
    """A function that truncates a file to half its size."""

    def apply(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return apply


def other_block(folder: Path) -> None:
    tensors = load_file(folder / "analysis.safetensors")
    save_file(tensors | {"centered.2.1": 2 * tensors["centered.2.1"]}, folder / "analysis.safetensors")


def small_block(folder: Path) -> None:
    tensors = load_file(folder / "analysis.safetensors")
    save_file(tensors | {"coupling.2.1": tensors["coupling.2.1"][:2]}, folder / "analysis.safetensors")


def block_in_bf16(folder: Path) -> None:
    tensors = {
        name: torch.from_numpy(value) for name, value in load_file(folder / "analysis.safetensors").items()
    }
    tensors["coupling.2.1"] = tensors["coupling.2.1"].bfloat16()
    safetensors.torch.save_file(tensors, folder / "analysis.safetensors")


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda folder: (folder / "analysis.json").unlink(), "analysis.json: cannot be read"),
        (cut("analysis.json"), "analysis.json: invalid JSON"),
        (lambda folder: (folder / "analysis.json").write_text("[]"), "found a list of 0, expected an object"),
        (change("model", drop=True), "analysis.json: model: found nothing, expected an object"),
        (change("model", "experts", value="4"), 'model: experts: found "4", expected an integer of'),
        (change("model", "top_k", value=5), "model: top_k: found 5, expected one of 1 to 4"),
        (change("model", "history", value="all"), 'model: history: found "all", expected "stage" or'),
        (change("model", "stages", value=[0, 0]), "model: stages: found a list of 2, expected numbers [3]"),
        (change("tau", drop=True), "analysis.json: tau: found nothing, expected a number"),
        (change("layer_dependency", 1, value=[1.0]), "found a list of 3, expected numbers or nulls [3, 3]"),
        (change("layer_dependency", 1, 0), "found a list of 3, expected a number for each of pairs"),
        (change("pairs", 0, "layer", value=9), "pairs[0]: layer: found 9, expected one of 2 to 3"),
        (change("pairs", 0, "norm", value=True), "pairs[0]: norm: found true, expected a number"),
        (change("pairs", 1, "predecessor", value=2), "pairs[2]: found layer 3 from 2 twice, expected it"),
        (change("centered_tau", drop=True), "analysis.json: centered_tau: found nothing, expected a number"),
        (change("expert_bias", 1, value=[0.0]), "expert_bias: found a list of 3, expected numbers [3, 4]"),
        (change("pairs", 0, "centered_norm", drop=True), "pairs[0]: centered_norm: found nothing, expected"),
        (change("coupling_by_distance", value=[]), "by_distance: found [], expected [1, 2], as in pairs"),
        (change("default_pair", "layer", value=1), "default_pair: layer: found 1, expected one of 2 to 3"),
        (change("expert_share", 0, 0), "found a list of 3, expected numbers [3, 4], and null in it"),
        (change("utilisation", drop=True), "analysis.json: utilisation: found nothing, expected an object"),
        (change("history", 1, drop=True), "history: found nothing for layer 2, expected an object"),
        (change("history_alone", 0, "kl"), "history_alone[0]: kl: found null, expected a number"),
        (change("removal", "routing_kl", 2, 0), "removal: routing_kl: found a list of 3, expected a number"),
        (change("paths", "text", value=["a"]), "paths: text: found a list of 1, expected 5 strings"),
        (change("paths", "experts", 0, 0, 0, value=4), "experts: found a list of 3, expected integers from"),
        (lambda folder: (folder / "analysis.safetensors").unlink(), "analysis.safetensors: cannot be read"),
        (cut("analysis.safetensors"), "analysis.safetensors: cannot be read"),
        (small_block, "analysis.safetensors: coupling.2.1: found float32 [2, 4], expected float32 [4, 4]"),
        (block_in_bf16, "analysis.safetensors: cannot be read"),
        (other_block, "analysis.safetensors: centered.2.1: found a norm of"),
    ],
)  # fmt: skip
def test_rejects_invalid_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], corrupt: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "wrong"
    write_analysis(folder, layers=3, experts=4, tokens=5)
    corrupt(folder)
    assert_rejected([str(folder)], folder, capsys, message)


def assert_rejected(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("hero analyze: ") and message in error and error.count("\n") == 1
    assert not {"figures", "report.html"} & {path.name for path in folder.iterdir()}


def test_rejects_invalid_runs_and_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "right"
    write_analysis(folder, layers=3, experts=4, data=False)
    run = write_run(tmp_path / "run", steps=3)
    (run / "metrics.jsonl").unlink()
    assert_rejected([str(folder), "--runs", str(run)], folder, capsys, f"{run}/metrics.jsonl: cannot be read")
    assert_rejected([str(folder), "--runs"], folder, capsys, "expected OUT [--runs RUN...]")
    assert_rejected([], folder, capsys, "expected OUT [--runs RUN...]")


def test_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "blocked"
    write_analysis(folder, layers=2, experts=4, stages=[0, 1], data=False)
    (folder / "figures").write_text("a file in the way")
    assert main([str(folder)]) == 1
    assert capsys.readouterr().err.startswith(f"hero analyze: {folder / 'figures'}: cannot be written")
    assert not (folder / "report.html").exists()
