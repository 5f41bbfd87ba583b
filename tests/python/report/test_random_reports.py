"""Random run folders: every figure in the tables of `hero report` is that of the files, computed one value at a time, and
the page is complete: well-formed figures, no NaN, no warning."""

from __future__ import annotations

import json
import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hero_moe.report import __main__ as report
from random_cases import Case, property_tests, reproduce
from report_page import Page
from strategies import DrawFn

Record = dict[str, Any]
Values = list[float | None]

SCALARS = ("loss", "lm_loss", "lr", "grad_norm", "step_ms", "tokens_per_second", "mfu", "peak_memory_mib")
LAYER_KEYS = ("max_over_mean", "entropy", "rms_hidden", "rms_history", "rho", "history_variance_share")
NONE = "–"
UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@st.composite
def cases(draw: DrawFn) -> Case:
    """Runs of different lengths, depths and kinds; values may be missing in some records, or in all."""
    nulls = st.sampled_from([0.0, 0.0, 0.3, 1.0])
    runs = [
        {
            "kind": draw(st.sampled_from(["baseline", "hero", "rmoe"])),
            "first": draw(st.sampled_from([1, 1, 41])),
            "gap": draw(st.sampled_from([1, 1, 3])),
            "records": draw(st.sampled_from([1, 2, 9, 25, 45])),
            "tokens": draw(st.sampled_from([128, 2048])),
            "layers": draw(st.integers(1, 4)),
            "experts": draw(st.integers(2, 5)),
            "nulls": {key: draw(nulls) for key in (*SCALARS, "max_expert_share", "layers", "valid")},
            "without": draw(st.lists(st.sampled_from([*LAYER_KEYS, "mtp_loss", "layers"]), unique=True)),
            "constant": draw(st.sampled_from([None, None, 0.5, 0.0])),
            "snapshots": draw(st.integers(0, 3)),
            "valid": draw(st.integers(0, 2)),
            "evaluations": draw(st.integers(0, 2)),
            "norms": draw(st.booleans()),
        }
        for _ in range(draw(st.integers(1, 9)))
    ]
    return {"runs": runs, "seed": draw(st.integers(0, 2**32 - 1))}


def write_run(folder: Path, run: Case, noise: np.random.Generator) -> list[Record]:
    """Writes a run folder; returns its records."""
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'[model]\nnum_experts = {run["experts"]}\nnum_experts_per_tok = 1\n\n[router]\nkind = "{run["kind"]}"\n'
    )

    def value(key: str) -> float | None:
        if noise.random() < run["nulls"].get(key, 0.0):
            return None
        return round(float(noise.lognormal()), 6) if run["constant"] is None else run["constant"]

    def layers(key: str) -> Values:
        unseen = key in LAYER_KEYS[3:]
        return [None if unseen and not l else value("layers") for l in range(run["layers"])]

    records: list[Record] = []
    for number in range(run["records"]):
        step = run["first"] + number * run["gap"]
        record: Record = {"step": step, "tokens": step * run["tokens"]}
        record |= {key: value(key) for key in (*SCALARS, "max_expert_share")}
        if "mtp_loss" not in run["without"]:
            record["mtp_loss"] = value("loss")
        if "layers" not in run["without"]:
            keys = [key for key in LAYER_KEYS if key not in run["without"]]
            record["layers"] = {key: layers(key) for key in keys}
        if run["valid"] and number % 4 == 3:
            record["valid_loss"] = value("valid")
            record["valid"] = {f"set{i}": value("valid") for i in range(run["valid"])}
        if run["norms"] and number % 5 == 0:
            parts: Record = {
                "attention": [value("layers") for _ in range(run["layers"])],
                "head": value("layers"),
            }
            record["norms"] = {key: parts for key in ("grad_norm", "update_ratio", "weight_rms")}
            record["norms"]["max_router_logit"] = layers("rho")
        records.append(record)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with (folder / "routing.jsonl").open("w") as file:
        for record in records[len(records) - min(len(records), run["snapshots"]) :]:
            share = noise.dirichlet([1.0] * run["experts"], run["layers"])
            file.write(json.dumps({"step": record["step"], "expert_share": share.tolist()}) + "\n")
    if run["evaluations"]:
        sets = [{"name": f"set{i}", "loss": value("valid")} for i in range(run["evaluations"])]
        entries = [one | {"tokens": 9, "perplexity": math.exp(one["loss"] or 0)} for one in sets]
        (folder / "eval.json").write_text(json.dumps({"step": records[-1]["step"], "datasets": entries}))
    return records


def tail(values: list[Any]) -> list[Any]:
    """The last tenth, rounded up."""
    return values[-math.ceil(len(values) / 10) :]


def end_mean(values: Values) -> float | None:
    last = tail(values)
    return None if None in last else sum(last) / len(last)


def layer_means(records: list[Record], key: str) -> Values:
    """The mean over the layers that have a value, by record."""
    out: Values = []
    for record in records:
        row = [v for v in record.get("layers", {}).get(key, []) if v is not None]
        out.append(sum(row) / len(row) if row else None)
    return out


def number(text: str) -> tuple[float, float] | None:
    """A cell's value and the precision of its last digit; None for a dash."""
    if text == NONE:
        return None
    scale = UNITS.get(text[-1], 0.01 if text.endswith("%") else 1.0)
    digits = text.strip("%×kMBT").replace(",", "").replace("−", "-").replace("+", "")
    return float(digits) * scale, scale * 10.0 ** -len(digits.partition(".")[2])


def expect(found: str, expected: float | None, what: str) -> None:
    """A cell has the value, rounded to the digits shown."""
    shown = number(found)
    assert (shown is None) == (expected is None), f"{what}: found {found}, expected {expected}"
    if shown is not None and expected is not None:
        assert abs(shown[0] - expected) <= 0.5001 * shown[1] + 1e-9, (
            f"{what}: found {found}, expected {expected}"
        )


def tables(page: Page) -> dict[str, dict[str, list[str]]]:
    """The rows of every table by the run's name; tables by their second heading."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in page.rows:
        if row[0] == "run":
            found[row[1]] = {}
            rows = found[row[1]]
        elif row[0] != "key":
            rows[row[0]] = row
    return found


def differences(mine: list[Record], base: list[Record]) -> Values:
    losses = {record["step"]: record["lm_loss"] for record in base}
    out: Values = []
    for record in mine:
        if record["step"] in losses:
            pair = record["lm_loss"], losses[record["step"]]
            out.append(None if None in pair else pair[0] - pair[1])
    return out


def check_losses(rows: dict[str, list[str]], runs: dict[str, list[Record]], base: str) -> None:
    mtp = any(record.get("mtp_loss") is not None for records in runs.values() for record in records)
    for name, records in runs.items():
        row = rows[name][1:]
        expect(row.pop(0), end_mean([record["lm_loss"] for record in records]), f"{name}: final loss")
        if len(runs) > 1:
            words, relative = row.pop(0), row.pop(0)
            apart = differences(records, runs[base])
            if name == base:
                assert words == "baseline"
            elif not apart:
                assert words == "no common steps" and relative == NONE
            elif end_mean(apart) is None:
                assert words == "difference not finite" and relative == NONE
            else:
                expect(words, end_mean(apart), f"{name}: difference")
        assert row.pop(0) == str(len(tail(records)))
        expect(row.pop(0), end_mean([record["loss"] for record in records]), f"{name}: with auxiliary terms")
        if mtp:
            expect(row.pop(0), end_mean([record.get("mtp_loss") for record in records]), f"{name}: mtp")
        assert row.pop(0) == f"{records[-1]['step']:,}"
        expect(row.pop(0), records[-1]["tokens"], f"{name}: tokens")


def check_routing(found: dict[str, dict[str, list[str]]], runs: dict[str, list[Record]], case: Case) -> None:
    history: dict[str, list[str]] = found.get("rhomean", {})
    for run, (name, records) in zip(case["runs"], runs.items()):
        row = found["peak expert loadof all tokens"][name]
        peak = end_mean([record["max_expert_share"] for record in records])
        expect(row[1], peak, f"{name}: peak load")
        expect(row[2], None if peak is None else peak * run["experts"], f"{name}: of uniform")
        expect(row[3], end_mean(layer_means(records, "max_over_mean")), f"{name}: max / mean")
        expect(row[4], end_mean(layer_means(records, "entropy")), f"{name}: entropy")
        seen = [v for key in ("rho", "history_variance_share") for v in layer_means(records, key)]
        assert (name in history) == any(v is not None for v in seen), f"{name}: routing history"
        keys = ("rho", "history_variance_share", "rms_hidden", "rms_history")
        for cell, key in zip(history.get(name, [name])[1:], keys):
            expect(cell, end_mean(layer_means(records, key)), f"{name}: {key}")


def check_strongest(text: str, runs: dict[str, list[Record]]) -> None:
    """The largest history share over the last tenth of the steps, of any layer and run."""
    ends: list[tuple[float, int, str]] = []
    for name, records in runs.items():
        lists = [record.get("layers", {}).get("history_variance_share") or [] for record in records]
        for layer, values in enumerate(zip(*tail(lists)), start=1):
            present = [v for v in values if v is not None]
            if present:
                ends.append((sum(present) / len(present), layer, name))
    match = re.search(r"Largest final value: (\S+) in layer (\d+) of (run\d)\.", text)
    assert bool(match) == bool(ends), f"history share: {ends}"
    if match:
        expect(match[1], max(ends)[0], "largest history share")
        at = [(layer, name) for value, layer, name in ends if value >= max(ends)[0] - 1e-9]
        assert (int(match[2]), match[3]) in at, f"{match[0]}: expected one of {at}"


def check_speed(rows: dict[str, list[str]], runs: dict[str, list[Record]], base: str) -> None:
    def middle(name: str, key: str) -> float | None:
        values = [record[key] for record in runs[name] if record[key] is not None]
        return median(values) if values else None

    reference = middle(base, "tokens_per_second")
    for name, records in runs.items():
        speed = middle(name, "tokens_per_second")
        expect(rows[name][1], speed, f"{name}: tokens per second")
        relative = None if speed is None or not reference else speed / reference
        expect(rows[name][2], relative, f"{name}: relative speed")
        expect(rows[name][3], middle(name, "step_ms"), f"{name}: step")
        expect(rows[name][4], middle(name, "mfu"), f"{name}: MFU")
        memory = [record["peak_memory_mib"] for record in records if record["peak_memory_mib"] is not None]
        expect(rows[name][5], max(memory, default=None), f"{name}: memory")


def check_valid(rows: dict[str, list[str]], runs: dict[str, list[Record]]) -> None:
    validated = {name: [r for r in records if "valid" in r] for name, records in runs.items()}
    validated = {name: records for name, records in validated.items() if records}
    assert rows.keys() == validated.keys()
    names = {name for records in validated.values() for record in records for name in record["valid"]}
    for name, records in validated.items():
        row = rows[name]
        assert row[1] == f"{records[-1]['step']:,}"
        expect(row[2], records[-1]["valid_loss"], f"{name}: final validation loss")
        for cell, key in zip(row[3:-2], sorted(names)):
            expect(cell, records[-1]["valid"].get(key), f"{name}: {key}")
        losses = [(r["valid_loss"], r["step"]) for r in records if r["valid_loss"] is not None]
        lowest = min(losses, default=(None, None))
        expect(row[-2], lowest[0], f"{name}: lowest validation loss")
        assert row[-1] == (NONE if lowest[1] is None else f"{lowest[1]:,}")


def check(case: Case, folder: Path) -> None:
    noise = np.random.default_rng(case["seed"])
    runs = {f"run{i}": write_run(folder / f"run{i}", run, noise) for i, run in enumerate(case["runs"])}
    base = next((f"run{i}" for i, run in enumerate(case["runs"]) if run["kind"] == "baseline"), "run0")
    out = folder / "report.html"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert report.main([*(str(folder / name) for name in runs), "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    page = Page(text)
    words = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert not (found := re.search(r".{0,40}\b(nan|inf|None)\b.{0,40}", words)), found
    for plot in re.findall(r"<svg [^>]*role=\"img\".*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(plot)
    found = tables(page)
    check_losses(found["final lossnats per token"], runs, base)
    check_routing(found, runs, case)
    check_strongest(page.text, runs)
    check_speed(found["tokens per secondmedian"], runs, base)
    check_valid(found.get("last step", {}), runs)


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
