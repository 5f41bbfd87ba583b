"""The runs of a command line: their names, and reading them on all cores."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hero_moe.report.processes import run_tasks
from hero_moe.report.run_files import Run, load_run

PARALLEL_BYTES = 8 << 20  # smaller files are read before other processes would have started


def run_names(paths: list[Path]) -> list[str]:
    """The shortest unique path suffixes: `baseline`, or `seed1/baseline` and `seed2/baseline`."""
    parts = [path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def load_runs(paths: list[Path]) -> list[Run]:
    """Reads run folders, in processes of their own if their files are large. Raises `InputError` of the first
    invalid one."""
    names = run_names(paths) if paths else []
    size = sum(file.stat().st_size for path in paths for file in path.glob("*.jsonl"))
    tasks = [partial(load_run, path, name) for path, name in zip(paths, names)]
    return run_tasks(tasks, "reading the runs", parallel=size >= PARALLEL_BYTES)
