"""lm_eval's tasks for one benchmark: its own definitions with the overrides of suite/paper13.yaml."""

from __future__ import annotations

import hashlib
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.group import Group
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from hero_moe.evals.benchmarks import BENCHMARKS, SUITE, Benchmark
from hero_moe.evals.data import read, subset
from hero_moe.evals.tasks import LocalTask, subject_name


class Suite:
    """The benchmarks over the files in `folder`; `limit` rows of each, None for all."""

    def __init__(self, folder: str | Path, limit: int | None = None) -> None:
        self.folder, self.limit = Path(folder), limit
        tasks = Path(lm_eval.__file__).parent / "tasks"
        own = sorted({tasks / name for benchmark in BENCHMARKS.values() for name in benchmark.folders})
        logging.getLogger("lm_eval.tasks._index").setLevel(logging.ERROR)  # a duplicate tag is harmless
        self._index = TaskManager(include_path=[*own, SUITE], include_defaults=False).task_index
        children = load_yaml(SUITE / "paper13.yaml")["task"]
        self._overrides: dict[str, dict[str, Any]] = {child["dataset_path"]: child for child in children}

    def shots(self, benchmark: Benchmark) -> int:
        """Default number of few-shot examples."""
        return self._overrides[benchmark.key]["num_fewshot"]

    def subjects(self, benchmark: Benchmark) -> list[str]:
        """lm_eval's subjects, named as in the rows; none for a benchmark without subjects."""
        return list(self._leaves(benchmark)) if benchmark.subject else []

    def name(self, benchmark: Benchmark) -> str:
        """The task or group in lm_eval's results."""
        overrides = self._overrides[benchmark.key]
        return overrides.get("group") or overrides["task"]

    def load(self, benchmark: Benchmark, shots: int) -> dict[str, dict[str, Any]]:
        """Tasks and groups for `lm_eval.evaluate`: a task for each subject that has rows."""
        overrides = {k: v for k, v in self._overrides[benchmark.key].items() if k not in ("task", "group")}
        leaves = self._leaves(benchmark)
        if benchmark.subject:
            chosen = subset(read(self.folder, benchmark).rows, self.limit)
            present = {row[benchmark.subject] for row in chosen}
            leaves = {subject: name for subject, name in leaves.items() if subject in present}
        tasks = {name: self._task(name, overrides | {"num_fewshot": shots}) for name in leaves.values()}
        if not benchmark.subject:
            return {"tasks": tasks, "groups": {}}
        name = self.name(benchmark)
        metrics = self._index[name].cfg["aggregate_metric_list"]
        group = Group.from_config({"group": name, "aggregate_metric_list": metrics})
        for task in tasks.values():
            group.add(task)
        return {"tasks": tasks, "groups": {name: group}}

    def _task(self, name: str, overrides: dict[str, Any]) -> LocalTask:
        definition = load_yaml(self._index[name].yaml_path)
        metadata = definition.get("metadata", {}) | {"data_dir": str(self.folder), "limit": self.limit}
        config = definition | overrides | {"metadata": metadata}
        return LocalTask({key: value for key, value in config.items() if key not in ("tag", "group")})

    def _leaves(self, benchmark: Benchmark) -> dict[str, str]:
        """Subject -> task; a benchmark without subjects has one task."""
        names = self._below(self.name(benchmark))
        if not benchmark.subject:
            return {"": names[0]}
        return {subject_name(benchmark, self._index[name].cfg["dataset_name"]): name for name in names}

    def _below(self, name: str) -> list[str]:
        entry = self._index[name]
        if entry.cfg is None:  # a tag
            return sorted(entry.tags)
        children = entry.cfg["task"]
        if isinstance(children, str):
            return [name]
        return [leaf for child in children for leaf in self._below(child)]


def definitions() -> str:
    """Hash of what prompts depend on besides the data: lm_eval's version and the files of this package."""
    digest = hashlib.sha256(version("lm_eval").encode())
    for path in (*sorted(SUITE.glob("*.yaml")), SUITE.parent / "tasks.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()
