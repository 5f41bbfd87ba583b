"""Figures of an analysis: plotted values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from safetensors.numpy import load_file

from analysis_folder import write_analysis
from conftest import write_run
from hero_moe.analysis import data_figures, loss_figures, removal_figures, strong_figures, weight_figures
from hero_moe.analysis.contents import FORMS, Analysis, Form
from hero_moe.analysis.drawing import Drawing, stage_spans
from hero_moe.analysis.reading import load_analysis
from hero_moe.report.figures import STYLE, make_room
from hero_moe.report.run_files import load_run
from hero_moe.report.sections import Comparison

STAGES = [0, 0, 0, 1, 1, 1]
PREFIX = {"raw": "", "centered": "centered_"}  # key prefixes in analysis.json
TENSORS = {"raw": "coupling", "centered": "centered"}
both_forms = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 layers in two stages, 16 experts, top-2; with data and a baseline."""
    path = tmp_path_factory.mktemp("analysis") / "small"
    write_analysis(path, stages=STAGES)
    return path


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "analysis.json").read_text())


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Analysis:
    return load_analysis(folder)


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE):
        yield


@pytest.fixture
def other(tmp_path: Path) -> Callable[..., Analysis]:
    """A function that reads an analysis of the given shape."""

    def make(**shape: Any) -> Analysis:
        write_analysis(tmp_path / "other", **shape)
        return load_analysis(tmp_path / "other")

    return make


def table_of(drawing: Drawing, panel: int = 0) -> np.ndarray:
    """The data of the last image of a panel, NaN for masked cells."""
    return np.ma.filled(drawing.figure.axes[panel].images[-1].get_array().astype(float), np.nan)


@both_forms
def test_dependency_shows_visible_pairs_and_outlines_stages(
    analysis: Analysis, content: dict[str, Any], form: Form
) -> None:
    drawing = weight_figures.dependency(analysis, form)
    expected = np.full((6, 6), np.nan)
    for pair in content["pairs"]:
        place = pair["layer"] - 1, pair["predecessor"] - 1
        seen = place[0] % 3  # M_l counts from the start of the stage
        expected[place] = pair[f"{PREFIX[form]}norm"] * (place[0] / seen) ** 0.5
    np.testing.assert_allclose(table_of(drawing), expected, rtol=1e-12)
    squares = [(p.get_x(), p.get_y(), p.get_width()) for p in drawing.figure.axes[0].patches]
    assert squares == [(0.5, 0.5, 3), (3.5, 3.5, 3)]
    layer, predecessor, value = weight_figures.strongest(expected)
    assert f"Strongest: layer {predecessor} → layer {layer}, {value:.3g}." in drawing.caption
    assert f"Frobenius norm of the {form} weight block" in drawing.caption
    assert "history does not cross stages" in drawing.caption


def test_stage_spans() -> None:
    assert stage_spans([0, 0, 1, 1, 1, 2]) == [(1, 2), (3, 5), (6, 6)]


def test_distances_are_stacked_bars(analysis: Analysis, content: dict[str, Any]) -> None:
    drawing = strong_figures.distances(analysis)
    keys = ("coupling_by_distance", "centered_coupling_by_distance")
    assert content[keys[0]] != content[keys[1]]
    for axes, key in zip(drawing.figure.axes, keys, strict=True):
        entries = content[key]
        negative, positive = axes.patches[: len(entries)], axes.patches[len(entries) :]
        assert [bar.get_height() for bar in negative] == [entry["negative"] for entry in entries]
        assert [bar.get_height() for bar in positive] == [entry["positive"] for entry in entries]
        assert [bar.get_y() for bar in positive] == [entry["negative"] for entry in entries]


def test_bias_of_each_expert(analysis: Analysis, content: dict[str, Any]) -> None:
    drawing = strong_figures.bias(analysis)
    np.testing.assert_array_equal(table_of(drawing), content["expert_bias"])
    largest = np.abs(content["expert_bias"]).max()
    assert drawing.figure.axes[0].images[0].get_clim() == (-largest, largest)
    assert f"{largest:.3g}, expert" in drawing.caption


@both_forms
def test_matrix_shows_weights_with_a_clipped_symmetric_range(
    analysis: Analysis, folder: Path, form: Form
) -> None:
    block = load_file(folder / "analysis.safetensors")[f"{TENSORS[form]}.3.2"]
    assert analysis.default_pair == (3, 2)
    drawing = weight_figures.matrix(analysis, form)
    np.testing.assert_array_equal(table_of(drawing), block)
    image = drawing.figure.axes[0].images[0]
    limit = np.percentile(np.abs(block.astype(float)), 99.8)
    np.testing.assert_allclose(image.get_clim(), (-limit, limit), rtol=1e-12)
    low, high = (image.cmap(part) for part in (0.0, 1.0))
    assert low[2] > low[0] and high[0] > high[2]  # blue below zero, red above
    axes = drawing.figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source expert, layer 2", "target expert, layer 3")


def test_symmetric_range_interpolates() -> None:
    assert weight_figures.symmetric_range(np.arange(-500.0, 501.0)) == pytest.approx(499.0, rel=1e-12)
    assert weight_figures.symmetric_range(np.zeros(4)) == 1.0


@both_forms
def test_adjacent_blocks_are_scaled_and_share_one_range(analysis: Analysis, form: Form) -> None:
    blocks = weight_figures.adjacent_blocks(analysis, form)
    assert list(blocks) == [(2, 1), (3, 2), (5, 4), (6, 5)]
    factor = (5 / 2) ** 0.5  # layer 6 sees 2 of 5
    np.testing.assert_allclose(blocks[6, 5], analysis.coupling[form].blocks[6, 5] * factor, rtol=1e-6)
    drawing = weight_figures.adjacent(analysis, form)
    panels = drawing.figure.axes[:4]
    assert [axes.get_title() for axes in panels] == ["1 → 2", "2 → 3", "4 → 5", "5 → 6"]
    limit = weight_figures.symmetric_range(*blocks.values())
    assert {axes.images[0].get_clim() for axes in panels} == {(-limit, limit)}
    assert f"±{limit:.3g}" in drawing.caption


def test_rows_of_panels() -> None:
    assert [weight_figures.fitting_columns(count) for count in (1, 5, 9, 28, 29)] == [1, 5, 5, 7, 6]


@both_forms
def test_effective_ranks(analysis: Analysis, content: dict[str, Any], form: Form) -> None:
    table = table_of(weight_figures.effective_ranks(analysis, form))
    for pair in content["pairs"]:
        expected = pair[f"{PREFIX[form]}effective_rank"]
        assert table[pair["layer"] - 1, pair["predecessor"] - 1] == expected
    assert np.isfinite(table).sum() == len(content["pairs"]) == 6


def test_utilization_shares_one_scale_and_labels_the_peaks(
    analysis: Analysis, content: dict[str, Any]
) -> None:
    drawing = data_figures.utilization(analysis, analysis.data)
    baseline, own, bar = drawing.figure.axes[:3]
    used = content["utilisation"]
    np.testing.assert_array_equal(table_of(drawing, 0), used["baseline"]["expert_share"])
    np.testing.assert_array_equal(table_of(drawing, 1), content["expert_share"])
    top = max(np.max(used["baseline"]["expert_share"]), np.max(content["expert_share"]))
    assert baseline.images[0].get_clim() == own.images[0].get_clim() == (0.0, top)
    peak = used["peak"]
    words = f"peak {peak['share']:.2%}: layer {peak['layer']}, expert {peak['expert']}"
    assert own.get_title(loc="left") == f"hero\n{words}"
    change = f"−{abs(used['peak_change_percent']):.1f}%"
    assert change in drawing.figure.get_suptitle()
    drawing.figure.draw_without_rendering()
    (second,) = bar.child_axes
    np.testing.assert_allclose(second.get_ylim(), np.array(bar.get_ylim()) / 2, rtol=1e-9)  # K = 2


def test_history_share_against_its_initial_value(analysis: Analysis, content: dict[str, Any]) -> None:
    axes = data_figures.history_share(analysis, analysis.data).figure.axes[0]
    measured = [entry["variance_share"] for entry in content["history"]]
    initial = [entry["initial_variance_share"] for entry in content["history"]]
    for layer, (share, bar) in enumerate(zip(measured, axes.patches), start=1):
        assert bar.get_x() + bar.get_width() / 2 == pytest.approx(layer, abs=1e-9)
        assert np.isnan(bar.get_height()) if share is None else bar.get_height() == share
    line = axes.lines[0].get_ydata()
    assert np.isnan(line[[0, 3]]).all()  # the first layer of a stage has no visible predecessor
    assert line[[1, 2, 4, 5]].tolist() == [initial[i] for i in (1, 2, 4, 5)]


def test_agreement_and_chance(analysis: Analysis, content: dict[str, Any]) -> None:
    without, alone, divergence = data_figures.agreement(analysis, analysis.data).figure.axes
    layers = [entry["layer"] - 1 for entry in content["agreement"]]
    for axes, key, name, line in (
        (without, "agreement", "top_k", 0),
        (without, "agreement", "top_1", 1),
        (alone, "history_alone", "top_k", 0),
        (alone, "history_alone", "top_1", 1),
        (divergence, "history_alone", "kl", 0),
    ):
        assert axes.lines[line].get_ydata()[layers].tolist() == [entry[name] for entry in content[key]]
    assert [line.get_ydata()[0] for line in alone.lines[2:]] == [2 / 16, 1 / 16]


@both_forms
def test_removal_next_to_dependency(analysis: Analysis, content: dict[str, Any], form: Form) -> None:
    drawing = removal_figures.removal(analysis, analysis.data, form)
    prefix = PREFIX[form]
    change = content["removal"][f"{prefix}routing_change"]
    dependency = content[f"{prefix}layer_dependency"]
    places = [(pair["layer"] - 1, pair["predecessor"] - 1) for pair in content["pairs"]]
    expected = [(dependency[l][p], change[l][p]) for l, p in places]
    points = drawing.figure.axes[3].collections[0]
    np.testing.assert_array_equal(points.get_offsets(), expected)
    np.testing.assert_array_equal(points.get_array(), [l - p for l, p in places])
    correlation = {"raw": "+0.81", "centered": "+0.67"}[form]
    assert f"rank correlation {correlation}" in drawing.figure.axes[3].get_title(loc="left")
    table = table_of(drawing, 1)
    assert [table[place] for place in places] == [value for _, value in expected]


@both_forms
def test_loss_without_a_predecessor_is_colored_by_its_sign(
    analysis: Analysis, content: dict[str, Any], form: Form
) -> None:
    bars = removal_figures.removal_loss(analysis, analysis.data, form).figure.axes[0].patches
    changes = [entry[f"{PREFIX[form]}loss_change"] for entry in content["removal"]["loss_without"]]
    assert [bar.get_height() for bar in bars] == changes
    colors = ["#b2182b" if change > 0 else "#2166ac" for change in changes]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == colors


def test_paths_of_a_few_tokens(analysis: Analysis, content: dict[str, Any]) -> None:
    assert data_figures.shown_tokens(40) == [0, 8, 16, 23, 31, 39]
    assert data_figures.shown_tokens(3) == [0, 1, 2]
    axes = data_figures.routing_paths(analysis, analysis.data).figure.axes[1]
    experts = [layer[8] for layer in content["paths"]["experts"]]
    points = [[layer, one] for layer, chosen in enumerate(experts, start=1) for one in chosen]
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), points)
    assert axes.lines[0].get_ydata().tolist() == [chosen[0] for chosen in experts]
    weights = np.array([layer[8] for layer in content["paths"]["weights"]]).ravel()
    sizes = axes.collections[0].get_sizes()
    np.testing.assert_allclose(sizes / sizes.max(), weights / weights.max(), rtol=1e-9)


def test_windows_and_global_history(other: Callable[..., Analysis]) -> None:
    analysis = other(layers=5, experts=4, stages=[0, 0, 1, 1, 1], history="global", window=2, data=False)
    assert len(analysis.depth_factor) == 7
    dependency = analysis.coupling["centered"].dependency
    assert np.isnan(dependency[3, 0])
    assert weight_figures.hidden_pairs_note(analysis) == " Gray: not visible (the window is 2)."
    assert set(weight_figures.mean_by_distance(dependency)) == {1, 2}


def test_loss_figures_of_runs_of_different_lengths(tmp_path: Path) -> None:
    write_run(tmp_path / "baseline", steps=40)
    write_run(tmp_path / "hero", kind="hero", steps=30, lower=0.25)
    runs = [tmp_path / "baseline", tmp_path / "hero"]
    shown = Comparison.of([load_run(path, path.name) for path in runs])
    curves, advantage = loss_figures.loss_drawings(shown)
    assert len(curves.figure.axes[0].child_axes) == 1  # the inset
    assert [text.get_text() for text in curves.figure.legends[0].texts] == ["baseline", "hero"]
    smoothed = advantage.figure.axes[0].lines[-1].get_ydata()
    np.testing.assert_allclose(smoothed, 0.25, atol=1e-9)
    assert len(smoothed) == 30
    assert [drawing.name for drawing in loss_figures.loss_drawings(Comparison.of(shown.runs[:1]))] == ["loss"]


def test_losses_leave_room_for_the_inset() -> None:
    axes = Figure().subplots()
    for least, top in ((6.0, 4 + 2 / 0.34), (7.75, 12.0)):  # the second would need more than twice the length
        axes.set_ylim(4, 8)
        make_room(axes, [np.linspace(least, 4, 51)], 0.34)
        assert axes.get_ylim() == pytest.approx((4, top), rel=1e-9)
    make_room(axes, [np.full(101, np.nan)], 0.34)
    assert axes.get_ylim() == pytest.approx((4, 12), rel=1e-9)
