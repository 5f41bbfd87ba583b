"""Routing metrics of any records equal those read one value at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hero_moe.report.json_lines import InputError
from hero_moe.report.layer_series import LAYER_SERIES, LayerSeries

VALUES = st.one_of(st.floats(allow_nan=False), st.integers(-(2**70), 2**70), st.none())
OTHERS = st.sampled_from([True, "1", {}, [1.0], 10**400])


@st.composite
def records(draw: st.DrawFn) -> tuple[int, list[dict[str, Any]]]:
    """Layers and records, several in a row with the same keys."""
    depth = draw(st.integers(1, 4))
    lists = st.none() | st.lists(VALUES, min_size=depth, max_size=depth)
    result: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 4))):
        keys = draw(st.lists(st.sampled_from([*LAYER_SERIES, "later"]), unique=True))
        result += [{key: draw(lists) for key in keys} for _ in range(draw(st.integers(1, 4)))]
    return depth, result


@settings(max_examples=300, derandomize=True, deadline=None)
@given(records())
def test_values_are_those_of_the_records(case: tuple[int, list[dict[str, Any]]]) -> None:
    depth, lines = case
    series = LayerSeries()
    for line in lines:
        series.add("file:1", line)
    found = series.arrays()
    assert list(found) == [key for key in LAYER_SERIES if any(line.get(key) is not None for line in lines)]
    for key, values in found.items():
        rows = [line.get(key) or [None] * depth for line in lines]
        np.testing.assert_array_equal(values, np.array(rows, dtype=float).reshape(-1, depth))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.sampled_from(LAYER_SERIES), OTHERS, st.data())
def test_reports_other_values(depth: int, before: int, key: str, other: Any, data: st.DataObject) -> None:
    good = {name: [0.5] * depth for name in LAYER_SERIES}
    series = LayerSeries()
    for _ in range(before):
        series.add("file:1", good)
    values = [*good[key][1:], other]
    changed = data.draw(st.sampled_from([values, other, [*good[key], 0.5], []]))
    if (
        changed == [1.0]
        and depth == 1
        or (before == 0 and key == LAYER_SERIES[0] and changed == [*good[key], 0.5])
    ):
        return  # valid
    with pytest.raises(InputError, match=r"file:2: layers\."):
        series.add("file:2", good | {key: changed})
