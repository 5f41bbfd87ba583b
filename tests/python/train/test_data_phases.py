"""data.phase: blends that change during a run. Boundaries, resume, branches, layouts, rejected changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hero_moe.report.run_files import load_run
from program import (
    SMALL,
    assert_exit_2,
    assert_resumes_alike,
    assert_same_outcome,
    checkpoint,
    deterministic_metrics,
    folder_bytes,
    hero,
    metrics,
    resume_copy,
    run_hero,
    tensor_bytes,
    toml,
    toml_value,
    training,
    write_megatron,
)
from ranks import run_on

STEPS = 9
MODEL: dict[str, Any] = {
    "router.kind": "hero",
    "router.balance": "global",
    "router.balance_loss": 0.01,
    "model.vocab_size": 512,
    "train.dtype": "fp64",
    "train.steps": STEPS,
    "train.sequence": 16,
    "train.micro_batch": 1,
    "train.global_batch": 4,
    "optim.schedule": "constant",
    "checkpoint.every": 1,
    "parallel.timeout": 60,
}
SOURCES = {"web": 1, "books": 2, "code": 3}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three data sets and their validation halves; web has 11 samples of 16 tokens."""
    folder = tmp_path_factory.mktemp("sources")
    for name, seed in SOURCES.items():
        rng = np.random.default_rng(seed)
        for half, count in (("train", 180), ("valid", 60)):
            tokens = rng.integers(1, 500, count).tolist()
            write_megatron(folder / f"{name}-{half}", [tokens[i : i + 20] for i in range(0, count, 20)])
    return folder


def phases(sources: Path, *given: tuple[int | None, str], key: str = "until_step") -> list[dict[str, Any]]:
    """Phases from bounds and blends such as "1:web 2:books"."""
    out: list[dict[str, Any]] = []
    for bound, blend in given:
        words = [word.rsplit(":", 1) for word in blend.split()]
        named = [":".join([*word[:-1], str(sources / word[-1])]) for word in words]
        out.append(({} if bound is None else {key: bound}) | {"blend": named})
    return out


def three(sources: Path) -> list[dict[str, Any]]:
    """Phases that end with steps 3 and 6; the second one reads web again."""
    return phases(sources, (3, "web"), (6, "1:books 2:web"), (None, "3:code 1:books"))


@pytest.fixture(scope="module")
def whole(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All steps without interruption, a checkpoint after each; never changed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    run_hero(*training(run, None, MODEL | {"data.phase": three(sources)}))
    return run


def test_phases_begin_at_their_steps(sources: Path, whole: Path, tmp_path: Path) -> None:
    assert [line["data_phase"] for line in metrics(whole)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    run = tmp_path / "run"
    lines = run_hero(*training(run, None, MODEL | {"data.phase": three(sources)})).stderr.splitlines()
    web, books, code = (str(sources / name) for name in ("web", "books", "code"))
    texts = [
        f"data phase 1 of 3, steps 1 to 3: {web}",
        f"data phase 2 of 3, steps 4 to 6: 1:{books} 2:{web}",
        f"data phase 3 of 3, steps 7 and later: 3:{code} 1:{books}",
    ]
    assert [line for line in lines if line.startswith("data phase ")] == texts
    assert [line for line in lines if " begins " in line] == [
        f"step 4 begins {texts[1]}",
        f"step 7 begins {texts[2]}",
    ]
    assert_same_outcome(run, whole, STEPS)
    # The first phase is the run on its data alone; without phases there is no such metric.
    alone = tmp_path / "alone"
    run_hero(*training(alone, sources / "web", MODEL | {"train.steps": 3}))
    assert tensor_bytes(alone, 3) == tensor_bytes(whole, 3)
    assert "data_phase" not in metrics(alone)[0]
    assert metrics(alone)[3 - 1]["loss"] == metrics(whole)[3 - 1]["loss"]


def test_one_phase_is_the_data_option(sources: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    settings = MODEL | {"train.steps": 4, "checkpoint.every": 0}
    blend = [f"2:{sources}/web", f"1:{sources}/books"]
    run_hero(*training(a, None, settings, "--data", *blend))
    run_hero(*training(b, None, settings, f"--data.phase={toml_value([{'blend': blend}])}"))
    assert tensor_bytes(a, 4) == tensor_bytes(b, 4)
    hashes = {load_run(run, "run").starts[0].data_hash for run in (a, b)}
    assert len(hashes) == 1
    assert json.loads((checkpoint(b, 4) / "state.json").read_text())["data"] == []


def test_tokens_are_bounds_too(sources: Path, whole: Path, tmp_path: Path) -> None:
    """64 tokens per step: 129 and 192 tokens are complete after step 3, 321 after step 6."""
    run = tmp_path / "run"
    for first in (129, 192):
        bounds = phases(sources, (first, "web"), (321, "1:books 2:web"), key="until_tokens")
        last = phases(sources, (None, "3:code 1:books"))
        run_hero(*training(run, None, MODEL | {"data.phase": bounds + last}))
        assert deterministic_metrics(run) == deterministic_metrics(whole)
        assert tensor_bytes(run, STEPS) == tensor_bytes(whole, STEPS)
        shutil.rmtree(run)


@pytest.mark.parametrize("step", range(1, STEPS))
def test_resume_before_at_and_after_a_boundary(whole: Path, tmp_path: Path, step: int) -> None:
    run = tmp_path / "run"
    resume_copy(whole, run, *range(step + 1, STEPS + 1))
    assert deterministic_metrics(run) == deterministic_metrics(whole)
    for later in range(step + 1, STEPS + 1):
        assert folder_bytes(checkpoint(run, later)) == folder_bytes(checkpoint(whole, later))


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "micro-batches of 2": (1, {"train.micro_batch": 2}),
    "recomputation": (1, {"train.micro_batch": 4, "train.recompute": True}),
    "data 2": (2, {"parallel.data": 2}),
    "data 2, micro-batches of 2": (2, {"parallel.data": 2, "train.micro_batch": 2}),
    "pipeline 2": (2, {"parallel.pipeline": 2}),
    "expert 2": (2, {"parallel.expert": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(sources: Path, whole: Path, tmp_path: Path, layout: str) -> None:
    ranks, changes = LAYOUTS[layout]
    run = tmp_path / "run"
    words = training(run, None, MODEL | changes | {"data.phase": three(sources)})
    run_on(words, ranks, tmp_path / "log")
    for key in ("loss", "grad_norm", "data_phase"):
        want = [line[key] for line in metrics(whole)]
        assert [line[key] for line in metrics(run)] == pytest.approx(want, rel=1e-9), key


@pytest.mark.parametrize("changes", [{"train.pack": "best_fit"}, {"train.document_mask": True}])
def test_packing_and_documents(sources: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The trained targets and documents of the samples, also after a resume within a phase."""
    settings = MODEL | changes | {"train.steps": 6, "checkpoint.every": 5, "data.phase": three(sources)}
    whole, run = tmp_path / "whole", tmp_path / "run"
    run_hero(*training(whole, None, settings))
    assert_resumes_alike(whole, run, 6)
    if "train.pack" in changes:
        counts = [line["trained_tokens"] for line in metrics(whole)]
        assert min(counts) > 0 and len(set(counts)) > 1


def test_branch_with_an_annealing_phase(sources: Path, tmp_path: Path) -> None:
    """A stable run with --data, then other data from step 3 on: the run that had both phases from the start."""
    stable, run, direct = tmp_path / "stable", tmp_path / "run", tmp_path / "direct"
    run_hero(*training(stable, sources / "web", MODEL | {"train.steps": 5}))
    overlay = tmp_path / "annealing.toml"
    given = phases(sources, (3, "web"), (None, "1:books 2:web"))
    overlay.write_text("".join(f"[[data.phase]]\n{toml(phase)}" for phase in given))
    before = folder_bytes(stable)
    words = ["train", "--branch", f"{stable}@3", "--run", run, "--data.phase=" + toml_value(given)]
    result = run_hero(*words, "--train.steps=6")
    assert f"step 4 begins data phase 2 of 2, steps 4 and later: 1:{sources}/books" in result.stderr
    assert folder_bytes(stable) == before
    run_hero(*training(direct, None, MODEL | {"train.steps": 6, "data.phase": given}))
    assert deterministic_metrics(run) == deterministic_metrics(direct)[3:]
    assert tensor_bytes(run, 6) == tensor_bytes(direct, 6)
    (line,) = [json.loads(text) for text in (run / "starts.jsonl").read_text().splitlines()]
    assert line["data"] == []
    assert line["phases"] == [
        {"until_step": 3, "blend": given[0]["blend"]},
        {"until_step": None, "blend": given[1]["blend"]},
    ]
    assert line["options"]["data.phase"] == {"from": [], "to": given}
    assert set(line["token_files"]) == {
        f"{sources}/{name}-train{end}" for name in ("web", "books") for end in (".bin", ".idx")
    }
    # The same from files.
    files = ["--config", stable.with_suffix(".toml"), overlay]
    run_hero("train", "--branch", f"{stable}@3", "--run", tmp_path / "files", *files, "--train.steps=6")
    assert deterministic_metrics(tmp_path / "files") == deterministic_metrics(run)
    # The branch resumes by itself, and its data has the hash of the other run's.
    shutil.rmtree(checkpoint(run, 6))
    run_hero("train", "--run", run, "--resume")
    assert tensor_bytes(run, 6) == tensor_bytes(direct, 6)
    found, expected = (load_run(folder, "run").starts[-1] for folder in (run, direct))
    assert found.data_hash == expected.data_hash
    assert found.data == (f"to step 3: {sources}/web;", f"then 1:{sources}/books 2:{sources}/web")
    # From step 4 on, the same command changes completed steps.
    words[2:5] = [f"{stable}@4", "--run", tmp_path / "late"]
    assert_exit_2(
        hero(*words, "--train.steps=6"),
        f"data.phase: found phase 2 from step 4 with 1:{sources}/books-train 2:{sources}/web-train, expected "
        f"no phase 2 up to step 4, as in {checkpoint(stable, 4)}: the data of completed steps may not change",
    )
    assert not (tmp_path / "late").exists()


def test_changes_on_resume(sources: Path, whole: Path, tmp_path: Path) -> None:
    """Phases of the future may change, also the bound of the current one; those of completed steps not."""
    original = Path(shutil.copytree(whole, tmp_path / "original"))
    for later in range(6, STEPS + 1):
        shutil.rmtree(checkpoint(original, later))
    before = folder_bytes(original)

    def resumed(*given: tuple[int | None, str]) -> list[Any]:
        return ["train", "--run", original, "--resume", f"--data.phase={toml_value(phases(sources, *given))}"]

    place = f", as in {checkpoint(original, 5)}: the data of completed steps may not change"
    web, books = (f"{sources}/{name}-train" for name in ("web", "books"))
    second = f"phase 2 from step 4 with 1:{books} 2:{web}"
    for words, message in [
        (
            resumed((2, "web"), (6, "1:books 2:web"), (None, "code")),
            f"data.phase: found phase 2 from step 3 with 1:{books} 2:{web}, expected {second}{place}",
        ),
        (
            resumed((3, "web"), (6, "1:books 1:web"), (None, "code")),
            f"data.phase: found phase 2 from step 4 with 1:{books} 1:{web}, expected {second}{place}",
        ),
        (
            resumed((3, "web"), (4, "1:books 2:web"), (None, "web")),
            f"data.phase: found phase 3 from step 5 with 1:{web}, expected no phase 3 up to step 5{place}",
        ),
        (
            resumed((None, "web")),
            f"data.phase: found no phase 2 up to step 5, expected {second}{place}",
        ),
        (
            ["train", "--run", original, "--resume", "--data.phase=[]"],
            f"data.phase: found [], expected the phases of {checkpoint(original, 5)}",
        ),
        (
            ["train", "--run", original, "--resume", "--data", web],
            f"--data: found {web} together with data.phase, expected one of them",
        ),
    ]:
        assert_exit_2(hero(*words), message)
        assert folder_bytes(original) == before
    # Equal weights in another unit, a phase that ends now, and another one after it.
    run_hero(*resumed((3, "1:web"), (5, "0.5:books 1:web"), (None, "code")))
    assert [line["data_phase"] for line in metrics(original)] == [1, 1, 1, 2, 2, 3, 3, 3, 3]
    direct = tmp_path / "direct"
    given = phases(sources, (3, "web"), (5, "1:books 2:web"), (None, "code"))
    run_hero(*training(direct, None, MODEL | {"data.phase": given}))
    assert deterministic_metrics(original) == deterministic_metrics(direct)
    assert tensor_bytes(original, STEPS) == tensor_bytes(direct, STEPS)


def test_longer_run_with_more_phases(sources: Path, tmp_path: Path) -> None:
    """A bound at the end of the run; a later phase that does not begin is a warning until the run is longer."""
    run, direct = tmp_path / "run", tmp_path / "direct"
    given = phases(sources, (4, "web"), (None, "code"))
    result = run_hero(*training(run, None, MODEL | {"train.steps": 4, "data.phase": given}))
    assert (
        "warning: data.phase: phase 2 has no effect: it begins after step 4, and the run has train.steps = 4"
        in result.stderr
    )
    result = run_hero("train", "--run", run, "--resume", "--train.steps=6")
    assert "warning: data.phase" not in result.stderr
    run_hero(*training(direct, None, MODEL | {"train.steps": 6, "data.phase": given}))
    assert tensor_bytes(run, 6) == tensor_bytes(direct, 6)
    # A last phase with a bound must be extended with the run.
    bounded = tmp_path / "bounded"
    given = phases(sources, (2, "web"), (4, "code"))
    run_hero(*training(bounded, None, MODEL | {"train.steps": 4, "data.phase": given}))
    assert_exit_2(
        hero("train", "--run", bounded, "--resume", "--train.steps=6"),
        "data.phase: phase 2: found until_step = 4, expected no bound, or at least train.steps = 6",
    )
    words = [f"--data.phase={toml_value(phases(sources, (2, 'web'), (6, 'code')))}", "--train.steps=6"]
    run_hero("train", "--run", bounded, "--resume", *words)


def test_rejected_starts(sources: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    web = sources / "web"

    def start(given: list[dict[str, Any]], *words: Any) -> Any:
        return hero(*training(run, None, MODEL | {"data.phase": given}, *words))

    for result, message in [
        (start([], "--resume"), "--data: none given"),
        (start(three(sources), "--data", web), f"--data: found {web} together with data.phase"),
        (
            start(phases(sources, (3, "web"), (3, "code"), (None, "web"))),
            "data.phase: phase 2: found until_step",
        ),
        (start(phases(sources, (3, "web"))), "data.phase: phase 1: found until_step = 3, expected no bound"),
        (start(phases(sources, (3, "web"), (None, "none"))), f"{sources}/none.idx: cannot be opened"),
        (start(phases(sources, (3, "web"), (None, "code code"))), "data.phase: phase 2: blend: found"),
        (start(three(sources), "--model.vocab_size=64"), "web-train.bin: document 0, token"),
    ]:
        assert_exit_2(result, message)
        assert not run.exists()


def test_replaced_files(sources: Path, tmp_path: Path) -> None:
    """Token files of every phase are compared, also of those that have not begun."""
    copies = Path(shutil.copytree(sources, tmp_path / "sources"))
    run = tmp_path / "run"
    settings = MODEL | {"train.steps": 2, "data.phase": phases(copies, (3, "web"), (None, "code"))}
    run_hero(*training(run, None, settings))
    file = copies / "code-train.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    resume = ["train", "--run", run, "--resume", "--train.steps=4"]
    assert_exit_2(hero(*resume), f"{file}: found ")
    # A new source takes its place.
    other = phases(copies, (3, "web"), (None, "books"))
    run_hero(*resume, f"--data.phase={toml_value(other)}")
    # web was read.
    file = copies / "web-train.bin"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    last = phases(copies, (3, "web"), (4, "books"), (None, "code"))
    assert_exit_2(
        hero(*resume[:-1], "--train.steps=5", f"--data.phase={toml_value(last)}"), f"{file}: found "
    )


def test_validation_reads_the_halves_of_all_phases(sources: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = MODEL | {"train.steps": 3, "eval.every": 3, "data.phase": three(sources)}
    run_hero(*training(run, None, settings))
    assert list(metrics(run)[-1]["valid"]) == ["web", "books", "code"]


def test_new_validation_halves_start_the_search_for_the_best_checkpoint_again(
    sources: Path, tmp_path: Path
) -> None:
    """With a rate at which the weights stay: the loss on two halves is higher than that on one."""
    run = tmp_path / "run"
    settings = {"train.steps": 4, "optim.lr": 1e-9, "optim.min_lr": 0, "checkpoint.every": 2}
    best = {"eval.every": 2, "checkpoint.keep_best": True}
    run_hero(*training(run, sources / "web", MODEL | settings | best))
    given = phases(sources, (4, "web"), (None, "code"))
    run_hero("train", "--run", run, "--resume", "--train.steps=6", f"--data.phase={toml_value(given)}")
    lines = metrics(run)
    assert lines[5]["valid_loss"] > lines[3]["valid_loss"] + 1e-6
    assert list(lines[3]["valid"]) == ["web"] and list(lines[5]["valid"]) == ["web", "code"]
    assert json.loads((run / "best.json").read_text())["step"] == 6


def test_loss_masks(sources: Path, tmp_path: Path) -> None:
    """Of the sources of every phase, which must all have one when the run starts."""
    copies = Path(shutil.copytree(sources, tmp_path / "sources"))
    given = phases(copies, (2, "web"), (None, "code"))
    settings = MODEL | {"train.steps": 4, "train.loss_mask": True, "data.phase": given}
    run, again = tmp_path / "run", tmp_path / "again"
    # Every fourth token of web, and every second one of code.
    write_megatron(copies / "web-train-mask", [[int(i % 4 == 0) for i in range(20)]] * 9, "uint8")
    assert_exit_2(hero(*training(run, None, settings)), f"{copies}/code-train-mask.idx: not found, expected")
    write_megatron(copies / "code-train-mask", [[int(i % 2 == 0) for i in range(20)]] * 9, "uint8")
    run_hero(*training(run, None, settings))
    assert [line["trained_tokens"] for line in metrics(run)] == [16, 16, 32, 32]
    resume_copy(run, again, 3, 4)
    assert_same_outcome(again, run, 4)
    mask = copies / "code-train-mask.bin"
    mask.write_bytes(bytes([1]) + mask.read_bytes()[1:-1] + b"\1")
    assert_exit_2(hero("train", "--run", run, "--resume", "--train.steps=5"), f"{mask}: found ")


def test_study(sources: Path, tmp_path: Path) -> None:
    """Phases in the base configuration, without --data; evaluation on the halves of all phases."""
    config = tmp_path / "base.toml"
    config.write_text(toml(SMALL | MODEL | {"router.kind": "baseline", "data.phase": three(sources)}))
    words = ["study", config, "--variants", "baseline,hero", "--seeds", 1, "--threads", 1]
    out = tmp_path / "out"
    run_hero(*words, "--out", out)
    (folder,) = out.glob("seed-*")
    for name in ("baseline", "hero"):
        assert [line["data_phase"] for line in metrics(folder / name)] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        sets = json.loads((folder / name / "eval.json").read_text())["datasets"]
        assert {Path(entry["name"]).name for entry in sets} == {f"{source}-valid" for source in SOURCES}
    assert_exit_2(
        hero(*words, "--out", tmp_path / "other", "--data", sources / "web"), "together with data.phase"
    )
    config.write_text(toml(SMALL | MODEL))
    assert_exit_2(hero(*words, "--out", tmp_path / "other"), "--data: found nothing, expected PREFIX")
