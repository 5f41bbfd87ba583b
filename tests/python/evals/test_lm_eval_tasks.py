"""lm-evaluation-harness on our engine: tasks, the `lm_eval` command and its version."""

from __future__ import annotations

import json
import os
import random
import runpy
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import yaml
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from hero_moe.evals.harness import HeroLM
from lm_eval_models import LOGPROB, offline, pieces_of_text, write_model
from program import ROOT

PYTHON = ROOT / "python"
LM_EVAL_VERSION = "0.4.13"  # for which python/_hero_moe_lm_eval.py was tested


@pytest.fixture(scope="module", autouse=True)
def no_downloads() -> Iterator[None]:
    with offline():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks over JSON lines: multiple choice and generation."""
    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(6)
    names = ["left", "right", "node", "count"]
    with (folder / "questions.jsonl").open("w") as out:
        for text in pieces_of_text(7, [rng.randint(20, 200) for _ in range(40)]):
            choices = rng.sample(names, 3)
            out.write(json.dumps({"text": text, "choices": choices, "answer": rng.randrange(3)}) + "\n")
    files = {"data_files": {"test": str(folder / "questions.jsonl")}, "cache_dir": str(folder / "cache")}
    shared: dict[str, Any] = {
        "dataset_path": "json",
        "dataset_kwargs": files,
        "test_split": "test",
        "doc_to_text": "{{text}}",
        "metadata": {"version": 1},
    }
    metric = {"aggregation": "mean", "higher_is_better": True}
    choose = shared | {
        "task": "hero_choose",
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": name} | metric for name in ("acc", "acc_norm")],
    }
    write = shared | {
        "task": "hero_write",
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"} | metric],
    }
    for task in (choose, write):
        (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))
    return folder


def evaluated(model: str, arguments: dict[str, Any], tasks: Path) -> dict[str, Any]:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    words: dict[str, Any] = {"tasks": ["hero_choose", "hero_write"], "batch_size": 8, "device": "cpu"}
    return lm_eval.simple_evaluate(model, arguments, task_manager=manager, bootstrap_iters=0, **words)


def test_tasks_match_hflm(folder: Path, tasks: Path) -> None:
    theirs = evaluated("hf", {"pretrained": str(folder), "dtype": "float32"}, tasks)
    ours = evaluated("hero", {"path": str(folder)}, tasks)
    assert ours["results"] == theirs["results"]
    assert 0 < ours["results"]["hero_choose"]["acc,none"] < 1
    assert ours["config"]["model_folder"] == str(folder) and ours["config"]["model_dtype"] == "fp32"
    for task, samples in ours["samples"].items():
        for sample, expected in zip(samples, theirs["samples"][task], strict=True):
            if task == "hero_write":
                assert sample["resps"] == expected["resps"]
            else:
                got, wanted = ([p for ((p, _),) in s["resps"]] for s in (sample, expected))
                assert len(got) == 3 and got == pytest.approx(wanted, abs=LOGPROB, rel=0)


def test_version() -> None:
    """The registration uses lm_eval's modules in a way that no version documents."""
    assert lm_eval.__version__ == LM_EVAL_VERSION, (
        f"lm_eval: found version {lm_eval.__version__}, expected {LM_EVAL_VERSION}, for which "
        "python/_hero_moe_lm_eval.py was tested. If this version discovers entry points of the group "
        "lm_eval.models, declare hero_moe.evals.harness:HeroLM in pyproject.toml and delete the .pth hook; "
        "otherwise make tests/python/evals/test_lm_eval*.py pass and change LM_EVAL_VERSION."
    )


def test_command_line(folder: Path, tasks: Path, tmp_path: Path) -> None:
    """`lm_eval --model hero` with the package's files in site-packages, where pip installs them."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    for name in ("hero_moe", "_hero_moe_lm_eval.py", "hero_moe_lm_eval.pth"):
        (site / name).symlink_to(PYTHON / name)
    (site / "others.pth").write_text(str(Path(lm_eval.__file__).parents[1]))
    script = Path(sys.executable).with_name("lm_eval")
    words = ["--model", "hero", "--model_args", f"path={folder},max_length=120"]
    words += ["--batch_size", "auto", "--include_path", tasks, "--tasks", "hero_choose"]
    words += ["--output_path", tmp_path / "results"]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment = os.environ | offline | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, script, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "|hero_choose|" in done.stdout and "Running loglikelihood requests" in done.stderr
    (file,) = (tmp_path / "results").rglob("results_*.json")
    written = json.loads(file.read_text())
    assert written["config"]["model"] == "hero" and written["max_length"] == 120
    expected = evaluated("hero", {"path": str(folder), "max_length": 120}, tasks)
    for name in ("acc,none", "acc_norm,none"):
        assert written["results"]["hero_choose"][name] == expected["results"]["hero_choose"][name]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_module_as_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m hero_moe.evals.harness` is lm_eval's command with the model registered."""
    known = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: known.append(get_model("hero")))
    runpy.run_module("hero_moe.evals.harness", run_name="__main__")
    assert known == [HeroLM]
