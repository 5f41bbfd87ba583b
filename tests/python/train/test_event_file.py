"""TensorBoard's own reader opens the files that src/train/tensorboard.cpp writes."""

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from program import ROOT

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

WRITER = Path(os.environ.get("HERO_BUILD", ROOT / "build")) / "tests" / "test_run_logs"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    if not WRITER.exists():
        pytest.skip(f"{WRITER} is not built")
    folder = tmp_path_factory.mktemp("tb")
    subprocess.run(
        [WRITER, "--gtest_filter=TensorBoardLog.FileForPython"],
        env={**os.environ, "HERO_EVENT_FOLDER": str(folder)},
        check=True,
        capture_output=True,
    )
    accumulator = event_accumulator.EventAccumulator(
        str(folder), size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    )
    return accumulator.Reload()


def test_tags(events):
    assert events.Tags()["scalars"] == ["train/loss", "router/max expert share"]
    assert events.file_version == 2.0


def test_values_steps_and_times(events):
    scalars = events.Scalars("train/loss")
    assert [event.step for event in scalars] == list(range(301))
    assert all(event.value == np.float32(1 / (event.step + 1)) for event in scalars[:-1])
    assert scalars[-1].value == -1
    assert scalars[10].wall_time == 1700000010.0


def test_events_of_later_steps_are_truncated(events):
    shares = events.Scalars("router/max expert share")
    assert [event.step for event in shares] == list(range(300))
    assert shares[0].value == 0.25 and math.isnan(shares[1].value)
