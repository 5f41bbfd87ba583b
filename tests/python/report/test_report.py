"""The comparison page: its content, that it is self-contained, and unusual or invalid run folders."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeRun, edit_lines
from hero_moe.report import __main__ as report
from hero_moe.report.comparison import downsample_extremes, smooth
from hero_moe.report.json_lines import InputError
from hero_moe.report.run_files import load_run
from hero_moe.report.sections import short_count
from program import ROOT
from report_page import Page


def render(tmp_path: Path, *runs: Path) -> str:
    out = tmp_path / "report.html"
    assert report.main([*map(str, runs), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def test_processes_draw_the_same_page(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run("baseline", kind="baseline"), make_run("hero", jitter=0.1)]
    alone = render(tmp_path, *runs)
    monkeypatch.setattr(report, "PARALLEL_RUNS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert render(tmp_path, *runs) == alone


def final_loss(run: Path, key: str = "lm_loss") -> float:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tail = records[-(len(records) // 10) :]
    return sum(record[key] for record in tail) / len(tail)


@pytest.fixture
def three(make_run: MakeRun) -> list[Path]:
    return [
        make_run("baseline"),
        make_run("hero", kind="hero", lower=0.03, jitter=0.02),
        make_run("hero-3", kind="hero", window=3, lower=0.0052),
    ]


def test_page_is_self_contained_with_well_formed_figures(tmp_path: Path, three: list[Path]) -> None:
    text = render(tmp_path, *three)
    page = Page(text)
    assert "http" not in text
    for _, name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value is not None and value.startswith(("#", "data:image/png;base64,"))
    assert not {tag for tag, _, _ in page.attributes} & {"script", "link", "iframe", "object"}
    plots = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", text, flags=re.DOTALL)
    assert len(plots) == 7  # loss, advantage, experts, load, rho, history share, throughput
    for plot in plots:
        ElementTree.fromstring(plot)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_losses_and_differences(tmp_path: Path, three: list[Path]) -> None:
    page = Page(render(tmp_path, *three))
    base, hero, window = (final_loss(run) for run in three)
    assert page.row("baseline")[1:3] == [f"{base:.3f}", "baseline"]
    assert page.row("hero")[1:3] == [f"{hero:.3f}", f"−{base - hero:.3f}"]
    assert page.row("hero")[3] == f"−{(base - hero) / base:.2%}"
    assert page.row("hero-3")[1:3] == [f"{window:.3f}", "−0.0052"]
    assert page.row("hero")[4:8] == ["6", f"{final_loss(three[1], 'loss'):.3f}", "60", "123k"]
    assert f"parentheses: baseline {base:.3f}, hero {hero:.3f} (−{base - hero:.3f})" in page.text
    assert "2 of 2 runs beat the baseline at the end." in page.text


def test_evaluation_loads_and_medians(tmp_path: Path, three: list[Path]) -> None:
    page = Page(render(tmp_path, *three))
    assert page.row("hero", 1) == ["hero", "60", "3.270 (26.31)", "3.670 (39.25)"]
    records = [json.loads(line) for line in (three[0] / "metrics.jsonl").open()][-6:]
    peak = sum(record["max_expert_share"] for record in records) / 6
    loads = page.row("baseline", 2)
    assert loads[1:3] == [f"{peak:.1%}", f"{peak / 0.125:.1f}×"]
    share = json.loads((three[0] / "routing.jsonl").read_text().splitlines()[-1])["expert_share"]
    most, layer, expert = max((value, i + 1, j) for i, row in enumerate(share) for j, value in enumerate(row))
    assert f"maximum {most:.1%}: layer {layer}, expert {expert}" in page.text
    assert "step 60. " in page.text and "One snapshot covers the batch of one step" in page.text
    speeds = sorted(json.loads(line)["tokens_per_second"] for line in (three[1] / "metrics.jsonl").open())
    assert page.row("hero", 4)[1] == f"{(speeds[29] + speeds[30]) / 2:,.0f}"
    assert page.row("hero", 4)[5] == "2,130"


def add_norms(run: Path, scale: float = 1.0) -> None:
    """Adds norms of two layers to every tenth step; the first layer has no W_R."""

    def changed(lines: list[str]) -> list[str]:
        records = [json.loads(line) for line in lines]
        for record in records[9::10]:
            values = {
                "embedding": 0.5 * scale,
                "attention": [scale, 2 * scale],
                "mlp": [None, None],
                "w_r": [None, 4 * scale],
            }
            record["norms"] = {key: values for key in ("grad_norm", "update_ratio", "weight_rms")}
            record["norms"] |= {"max_attention_logit": [3.0, record["step"]], "max_router_logit": [None, 1.5]}
        return [json.dumps(record) + "\n" for record in records]

    edit_lines(run / "metrics.jsonl", changed)


def test_norms(tmp_path: Path, three: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    add_norms(three[1])
    norms = load_run(three[1], "hero").metrics.norms
    assert norms is not None and norms.steps.tolist() == [10, 20, 30, 40, 50, 60]
    np.testing.assert_array_equal(norms.values["update_ratio.w_r"], [[np.nan, 4.0]] * 6)
    np.testing.assert_array_equal(norms.values["grad_norm.embedding"], [[0.5]] * 6)
    assert norms.values["max_attention_logit"][:, 1].tolist() == norms.steps.tolist()
    assert norms.has("weight_rms.attention") and not norms.has("weight_rms.mlp")
    text = render(tmp_path, *three)
    assert Page(text).text.count("Norms and logits") == 1
    plots = re.findall(r"<svg [^>]*role=\"img\".*?</svg>", text, flags=re.DOTALL)
    assert len(plots) == 9
    (panels,) = [plot for plot in plots if "update / weight" in plot]
    assert all(title in panels for title in ("embedding", "attention", "W_R")) and "dense" not in panels
    assert "Norms and logits" not in Page(render(tmp_path, three[0])).text

    def fewer_layers(lines: list[str]) -> list[str]:
        record = json.loads(lines[59])
        record["norms"]["max_router_logit"] = [1.5]
        return [*lines[:59], json.dumps(record) + "\n"]

    edit_lines(three[1] / "metrics.jsonl", fewer_layers)
    assert report.main([str(three[1]), "--out", str(tmp_path / "report.html")]) == 2
    assert "metrics.jsonl:60: norms: found other components or layers" in capsys.readouterr().err


def test_peak_load_is_a_mean_over_steps(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run("one", steps=100)

    def spike(lines: list[str]) -> list[str]:
        records = [json.loads(line) for line in lines]
        for record in records:
            record["max_expert_share"] = 0.2 if record["step"] < 100 else 0.7
        return [json.dumps(record) + "\n" for record in records]

    edit_lines(run / "metrics.jsonl", spike)
    assert Page(render(tmp_path, run)).row("one", 2)[1] == "25.0%"  # (9 * 20% + 70%) / 10


def test_expert_map_is_the_mean_over_the_last_tenth(make_run: MakeRun) -> None:
    path = make_run("run", steps=100, snapshots=False)
    shares = {step: np.full((2, 4), step / 100).tolist() for step in (80, 90, 92, 96, 100)}
    lines = [json.dumps({"step": step, "expert_share": share}) + "\n" for step, share in shares.items()]
    for count, steps, mean in ((5, [92, 96, 100], 0.96), (3, [92], 0.92), (2, [90], 0.9)):
        (path / "routing.jsonl").write_text("".join(lines[:count]))
        routing = load_run(path, "run").routing
        assert routing.steps == steps
        np.testing.assert_allclose(routing.share, np.full((2, 4), mean), rtol=1e-12)


def test_notes_that_a_pair_of_runs_is_not_evidence(tmp_path: Path, three: list[Path]) -> None:
    """At the top and next to losses, advantage, evaluation and load; no note for a single run."""
    pair, several = Page(render(tmp_path, *three[:2])).text, Page(render(tmp_path, *three)).text
    assert pair.count("This is one pair of runs, which is not evidence") == 1
    assert pair.count("One pair of runs is not evidence: see `hero study`.") == 4
    assert several.count("Every difference here is between two single runs, which is not evidence") == 1
    assert several.count("Differences between single runs are not evidence: see `hero study`.") == 4
    for text in (pair, several):
        assert "`hero study` trains every variant with several seeds" in text
        assert "The throughput of single runs depends on other load on the machine" in text
    assert "not evidence" not in Page(render(tmp_path, three[0])).text


def test_demo_results_note_that_they_are_not_evidence() -> None:
    root = ROOT
    below_picture = (root / "README.md").read_text().split("demo-loss.png", 1)[1][:900]
    demo = (root / "docs/results/demo.md").read_text()
    above_table = demo[: demo.index("training loss, mean of the last 90 steps")][-500:]
    for text in (below_picture, above_table):
        assert re.search(r"[Oo]ne pair of runs is not\s+evidence", text) and "`hero study`" in text


def test_shows_history_only_for_runs_with_history(tmp_path: Path, three: list[Path]) -> None:
    page = Page(render(tmp_path, *three))
    records = [json.loads(line)["layers"]["rho"][1:] for line in (three[1] / "metrics.jsonl").open()][-6:]
    assert page.row("hero", 3)[1] == f"{sum(map(sum, records)) / 30:.2f}"
    assert "Routing history" not in Page(render(tmp_path, three[0])).text


def test_configuration_shows_differing_keys_first(tmp_path: Path, three: list[Path]) -> None:
    text = render(tmp_path, *three)
    page = Page(text)
    keys = [row[0] for row in page.rows if re.fullmatch(r"[a-z]+\.\w+", row[0])]
    assert keys[:2] == ["router.kind", "router.window"]
    assert {"optim.betas", "model.hidden_size", "router.kind"} <= set(keys[2:])
    assert page.row("router.window") == ["router.window", "(not set)", "(not set)", "3"]
    assert '<td>baseline</td><td class="other">hero</td>' in text


def test_baseline_is_found_by_kind_or_is_the_first_run(
    tmp_path: Path, three: list[Path], make_run: MakeRun
) -> None:
    baseline, hero, window = three
    assert Page(render(tmp_path, hero, baseline)).row("baseline")[2] == "baseline"
    assert Page(render(tmp_path, window, hero)).row("hero-3")[2] == "baseline"
    other = make_run("other", kind="another kind", lower=0.1)
    page = Page(render(tmp_path, other, baseline))
    assert page.row("baseline")[2] == "baseline" and page.row("other")[2] == "−0.100"
    assert page.row("router.kind") == ["router.kind", "another kind", "baseline"]


def test_differences_use_common_steps_of_runs_of_different_lengths(tmp_path: Path, make_run: MakeRun) -> None:
    runs = make_run("long", steps=100), make_run("short", kind="hero", steps=40, lower=0.25)
    edit_lines(runs[1] / "metrics.jsonl", lambda lines: lines[1::2])
    page = Page(render(tmp_path, *runs))
    assert page.row("short")[2] == "−0.250"
    assert "differ in length" in page.text


def test_runs_without_common_steps(tmp_path: Path, make_run: MakeRun) -> None:
    runs = make_run("odd", steps=20), make_run("even", steps=20)
    edit_lines(runs[0] / "metrics.jsonl", lambda lines: lines[::2])
    edit_lines(runs[1] / "metrics.jsonl", lambda lines: lines[1::2])
    assert Page(render(tmp_path, *runs)).row("even")[2] == "no common steps"


def test_single_step_without_routing_or_evaluation(tmp_path: Path, make_run: MakeRun) -> None:
    page = Page(render(tmp_path, make_run("one", steps=1, kind="hero", snapshots=False, evaluation=False)))
    assert "one trained for 1 step (2,048 tokens)" in page.text
    assert "No routing snapshot" in page.text
    assert "Evaluation" not in page.text


def test_minimal_records_and_nulls(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run("lean", steps=30)
    lines = [{"step": s, "tokens": s, "loss": None, "lm_loss": None if s > 20 else 3.0} for s in range(1, 31)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Page(render(tmp_path, run)).row("lean")[1] == "–"


def test_thirty_runs_of_equal_folder_names(tmp_path: Path, make_run: MakeRun) -> None:
    runs = [make_run(f"seed{i:02}/<b>&hero_$x$", kind="hero", steps=25, lower=i / 100) for i in range(30)]
    text = render(tmp_path, *runs)
    page = Page(text)
    assert page.row("seed29/<b>&hero_$x$")[2] == "−0.290"
    assert "best other run: seed29/<b>&hero_$x$" in page.text
    assert "<b>" not in text


def test_downsamples_long_runs(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run("run", steps=2)
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    with (run / "metrics.jsonl").open("w") as out:
        for step in range(1, 20_001):
            loss = 90.0 if step == 777 else 3 + (step * 7919 % 1000) / 1000
            out.write(json.dumps(record | {"step": step, "loss": loss, "lm_loss": loss}) + "\n")
    text = render(tmp_path, run)
    assert len(text) < 300_000
    assert ">80</text>" in text  # the axis includes the spike


def test_smoothing_is_centered_follows_the_start_and_skips_gaps() -> None:
    values = np.array([9.0, 6.0, 3.0, np.nan, 1.0, 5.0])
    np.testing.assert_allclose(smooth(values, 5), [9.0, 6.0, 4.75, 3.75, 3.0, 3.0], rtol=1e-12)
    np.testing.assert_array_equal(smooth(values, 1), values)


def test_downsampling_keeps_extremes() -> None:
    y = np.sin(np.arange(1000.0))
    y[[137, 712]] = 50.0, -50.0
    x, kept = downsample_extremes(np.arange(1000), y, 20)
    assert len(x) <= 20 and kept.max() == 50.0 and kept.min() == -50.0 and (np.diff(x) > 0).all()


def test_ignores_an_incomplete_last_line(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run("live", steps=20)
    complete = render(tmp_path, run)
    for name in ("metrics.jsonl", "routing.jsonl"):
        with (run / name).open("a") as out:
            out.write('{"step": 40, "tok')
    assert render(tmp_path, run) == complete


def test_page_replaces_an_older_one_without_leftovers(tmp_path: Path, make_run: MakeRun) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("an older page")
    assert "an older page" not in render(out, make_run("run"))
    assert [path.name for path in out.iterdir()] == ["report.html"]


def record_starts(run: Path, *starts: dict[str, Any]) -> None:
    first = {
        "step": 0,
        "data": ["data/a"],
        "token_files": {"data/a.bin": {"bytes": 10, "sha256": "11"}},
        "tokenizer_sha256": "abcdef0123456789",
        "options": {},
        "changed_data": [],
    }
    (run / "starts.jsonl").write_text("".join(json.dumps(first | start) + "\n" for start in starts))


def test_data_and_resumes(tmp_path: Path, three: list[Path]) -> None:
    """A resume from an earlier step replaces later ones; the rows name what the runs were trained on."""
    halved = {"step": 20, "options": {"optim.lr": {"from": 1e-3, "to": 5e-4}}}
    record_starts(three[0], {})
    record_starts(three[1], {}, {"step": 40}, halved, {"step": 30, "changed_data": ["data/a.bin"]})
    page = Page(render(tmp_path, *three))
    data = page.row("baseline", 4)[1]  # without the table of histories
    assert re.fullmatch(r"data/a \([0-9a-f]{12}\)", data)
    assert page.row("baseline", 4)[2:] == ["abcdef012345", "–", "–"]
    changes = "from step 21: optim.lr 0.001 → 0.0005; from step 31: a.bin replaced"
    assert page.row("hero", 5) == ["hero", data, "abcdef012345", "20, 30", changes]
    assert page.row("hero-3", 5)[1:3] == ["not recorded", "not recorded"]
    warned = "These runs are not comparable: optim.lr changed during hero; the data changed during hero."
    assert warned in page.text
    assert "not comparable" not in Page(render(tmp_path, three[1])).text


def test_branches(tmp_path: Path, make_run: MakeRun) -> None:
    """Their parent and step, and curves that begin there; also after a resume before their first checkpoint."""
    stable, decay, moved = make_run("stable"), make_run("decay"), make_run("moved")
    saved = {"checkpoint": str(stable / "checkpoints" / "step-00000040"), "step": 40, "manifest_sha256": "0"}
    record_starts(stable, {})
    shorter = {"step": 40, "options": {"train.steps": {"from": 600, "to": 60}}}
    record_starts(decay, shorter | {"parent": saved}, shorter, {"step": 50})
    record_starts(moved, {"step": 40, "parent": saved | {"checkpoint": "/saved/last"}})
    for run in (decay, moved):
        edit_lines(run / "metrics.jsonl", lambda lines: lines[40:])
    page = Page(render(tmp_path, stable, decay, moved))
    (header,) = [row for row in page.rows if row[-1] == "parentof a branch"]
    first = page.rows.index(header) + 1
    rows = {row[0]: row[3:] for row in page.rows[first : first + 3]}
    assert rows["stable"] == ["–", "–", "–"]
    assert rows["decay"] == ["50", "from step 41: train.steps 600 → 60", "stable after step 40"]
    assert rows["moved"] == ["–", "–", "/saved/last after step 40"]
    note = "begin where they left their parent: decay (after step 40), moved (after step 40)."
    assert note in page.text
    assert load_run(decay, "decay").metrics.steps[0] == 41
    assert "branch" not in Page(render(tmp_path, stable)).text


def test_warns_of_runs_that_are_not_comparable(tmp_path: Path, make_run: MakeRun) -> None:
    a, b, c = make_run("a", steps=60), make_run("b", steps=60, seed=2), make_run("c", steps=40)
    config = c / "config.toml"
    config.write_text(config.read_text().replace("lr = 1e-3", "lr = 2e-3"))
    other = {"data": ["data/b"], "token_files": {"data/b.bin": {"bytes": 10, "sha256": "22"}}}
    moved = {"data": ["0.5:copy/b"], "token_files": {"copy/b.bin": {"bytes": 10, "sha256": "22"}}}
    record_starts(a, {})
    record_starts(b, {})
    record_starts(c, other | {"tokenizer_sha256": "0123456789abcdef"})
    assert "not comparable" not in Page(render(tmp_path, a, b)).text
    assert (
        "These runs are not comparable: different data (a, b: data/a; c: data/b); "
        "different tokenizers (a, b: abcdef012345; c: 0123456789ab); "
        "different numbers of training tokens (81.9k to 123k tokens); "
        "different training options (optim.lr)."
    ) in Page(render(tmp_path, a, b, c)).text
    record_starts(a, other)
    record_starts(b, moved)
    assert "not comparable" not in Page(render(tmp_path, a, b)).text, "the same data at another path"


def test_options_without_effect_on_learning_are_no_difference(tmp_path: Path, make_run: MakeRun) -> None:
    a, b = make_run("a"), make_run("b")
    config = (b / "config.toml").read_text()
    for key, line in (("train", "norms_every = 5\nlog_every = 3\n"), ("optim", 'offload_folder = "/tmp"\n')):
        config = config.replace(f"[{key}]\n", f"[{key}]\n{line}")
    (b / "config.toml").write_text(config)
    assert "not comparable" not in Page(render(tmp_path, a, b)).text


def test_blends_are_equal_by_shares_and_files(tmp_path: Path, make_run: MakeRun) -> None:
    a, b = make_run("a"), make_run("b")

    def files(folder: str, **names: str) -> dict[str, Any]:
        return {f"{folder}/{name}.bin": {"bytes": 10, "sha256": digest} for name, digest in names.items()}

    record_starts(a, {"data": ["0.9:data/a", "0.1:data/b"], "token_files": files("data", a="1", b="2")})
    for blend, found, same in [
        (["0.90:data/a", "1e-1:data/b"], files("data", a="1", b="2"), True),
        (["9:data/a", "1:data/b"], files("data", a="1", b="2"), True),
        (["0.9:copy/z", "0.1:copy/b"], files("copy", z="1", b="2"), True),
        (["0.9:data/b", "0.1:data/a"], files("data", a="1", b="2"), False),
        (["0.1:data/b", "0.9:data/a"], files("data", a="1", b="2"), False),
        (["0.9:data/a", "0.1:data/b"], files("data", a="2", b="1"), False),
    ]:
        record_starts(b, {"data": blend, "token_files": found})
        text = Page(render(tmp_path, a, b)).text
        assert ("These runs are not comparable: different data" not in text) == same, blend


def test_data_sets_of_equal_names(tmp_path: Path, make_run: MakeRun) -> None:
    """x-valid of data/a and of data/b: one column each, in all runs; a copy of data/a is the same data."""

    def evaluated(name: str, *given: tuple[str, str, float]) -> Path:
        run = make_run(name)
        entries = [
            {"name": Path(path).name, "tokens": 10, "loss": loss, "perplexity": np.exp(loss),
             "token_files": {f"{path}{end}": {"sha256": content} for end in (".idx", ".bin", "-mask.bin")}}
            for path, content, loss in given
        ]  # fmt: skip
        (run / "eval.json").write_text(json.dumps({"step": 60, "datasets": entries}))
        return run

    a = evaluated("a", ("data/a/x", "1", 3.0), ("data/b/x", "2", 4.0), ("data/b/y", "3", 5.0))
    b = evaluated("b", ("copy/x", "1", 3.5))
    c = evaluated("c", ("data/b/x", "2", 4.5))
    page = Page(render(tmp_path, a, b, c))
    assert page.row("a", 1)[2:] == ["3.000 (20.09)", "4.000 (54.60)", "5.000 (148.41)"]
    assert page.row("b", 1)[2:] == ["3.500 (33.12)", "–", "–"]
    assert page.row("c", 1)[2:] == ["–", "4.500 (90.02)", "–"]
    assert "a/x" in page.text and "b/x" in page.text
    (a / "eval.json").write_text(
        '{"step": 60, "datasets": [{"name": "x", "loss": 1, "perplexity": 2, "token_files": [3]}]}'
    )
    with pytest.raises(InputError, match="token_files: found list"):
        load_run(a, "a")


@pytest.mark.parametrize(
    ("value", "text"),
    [(950, "950"), (9999, "9,999"), (61_400, "61.4k"), (99_999, "100k"), (999_936, "1.00M"), (1e9 - 1, "1.00B"),
     (4e12, "4.00T"), (1e15, "1000T")],
)  # fmt: skip
def test_short_counts(value: float, text: str) -> None:
    assert short_count(value) == text


def test_phases_of_data(tmp_path: Path, make_run: MakeRun) -> None:
    """The data of a run is the text of its phases; equal phases of equal files are equal data."""
    a, b = make_run("a"), make_run("b")
    files = {f"data/{name}-train.bin": {"bytes": 10, "sha256": name} for name in "ab"}

    def recorded(run: Path, *phases: tuple[int | None, list[str]], files: dict[str, Any] = files) -> None:
        listed = [{"until_step": end, "blend": blend} for end, blend in phases]
        record_starts(run, {"data": [], "phases": listed, "token_files": files})

    recorded(a, (800, ["data/a"]), (None, ["0.7:data/b", "0.3:data/a"]))
    page = Page(render(tmp_path, a))
    assert re.fullmatch(
        r"to step 800: data/a; then 0.7:data/b 0.3:data/a \([0-9a-f]{12}\)", page.row("a", 4)[1]
    )
    moved = {path.replace("data/", "copy/"): digest for path, digest in files.items()}
    recorded(b, (800, ["copy/a"]), (None, ["0.7:copy/b", "0.3:copy/a.bin"]), files=moved)
    assert "not comparable" not in Page(render(tmp_path, a, b)).text
    for phases in (
        [(801, ["data/a"]), (None, ["0.7:data/b", "0.3:data/a"])],
        [(800, ["data/b"]), (None, ["0.7:data/b", "0.3:data/a"])],
        [(800, ["data/a"]), (None, ["0.6:data/b", "0.3:data/a"])],
        [(None, ["0.7:data/b", "0.3:data/a"])],
    ):
        recorded(b, *phases)
        assert "different data (a: to step 800: data/a; then" in Page(render(tmp_path, a, b)).text
    # One phase is --data, also with a bound, which is never reached; a date before a colon is no weight.
    for bound in (None, 100):
        recorded(a, (bound, ["data/a"]))
        record_starts(b, {"data": ["data/a"], "token_files": files})
        assert "not comparable" not in Page(render(tmp_path, a, b)).text
    record_starts(a, {"data": ["2026-01-02:web"]})
    render(tmp_path, a)


@pytest.mark.parametrize("longer", [0, 1])
def test_signs_agree_with_the_losses_next_to_them(tmp_path: Path, make_run: MakeRun, longer: int) -> None:
    """A run that is better at equal steps, and ends earlier with a higher loss, and the reverse."""
    runs = make_run("base", steps=[100, 40][longer]), make_run("other", steps=[40, 100][longer], lower=0.25)
    text = Page(render(tmp_path, *runs)).text
    found = re.search(r"other ([\d.]+) \(at the steps in common ([\d.]+) against ([\d.]+): −0.250\)", text)
    assert found, text
    final, mine, theirs = map(float, found.groups())
    assert final == pytest.approx(final_loss(runs[1]), abs=6e-4)
    assert mine - theirs == pytest.approx(-0.25, abs=2e-3)
    assert (final > final_loss(runs[0])) == (longer == 0)
    assert "at common steps" in text
