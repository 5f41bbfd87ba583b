"""Lines of any JSON are read as Python's json reads them, integers beyond 64 bits as floats."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hero_moe.report.json_lines import InputError, json_lines

INTEGERS = st.integers(-(2**70), 2**70) | st.sampled_from(
    [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]
)
SCALARS = st.none() | st.booleans() | st.floats() | INTEGERS | st.text()
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4))
RECORDS = st.dictionaries(st.text(), VALUES, max_size=4)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """A record, often with some bytes changed, on one line."""
    text = json.dumps(draw(RECORDS), ensure_ascii=draw(st.booleans()))
    line = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b",", b"[", b"e9", b"-", b"\xff", b"\\u"])
        )
    return bytes(line).replace(b"\n", b" ")


def normal(value: Any) -> Any:
    """Integers beyond 64 bits as floats where there is one; NaN and the sign of zero as text."""
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64 and abs(value) < 2**1000:
        return repr(float(value))
    return repr(value)


@settings(max_examples=1000, derandomize=True, deadline=None)
@given(lines())
@example(b'{"a": 1e999}')
@example(b'{"a": 1, "a": 2}')
@example(b'\xef\xbb\xbf{"a": 1}')
@example(b'{"a": "\\ud800"}')
@example(b"null")
@example(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}")
def test_records_are_those_of_json(line: bytes) -> None:
    try:
        expected = json.loads(line)
    except (ValueError, RecursionError):
        expected = None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "metrics.jsonl"
        file.write_bytes(line + b"\n")
        try:
            found = [record for _, record in json_lines(file)]
        except InputError as error:
            assert str(error).startswith(f"{file}:1: ") and "\n" not in str(error)
            assert not isinstance(expected, dict)
        else:
            blank = not line.strip()
            assert normal(found) == normal([] if blank else [expected])
