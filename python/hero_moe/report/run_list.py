"""The runs of a command line: their names, and reading them on all cores."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from hero_moe.delayed_interrupt import DelayedInterrupt
from hero_moe.report.json_lines import InputError
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
    workers = min(len(paths), len(os.sched_getaffinity(0)))
    if size < PARALLEL_BYTES or workers < 2:
        return [load_run(path, name) for path, name in zip(paths, names)]
    runs: list[Run] = []
    # Ctrl-C reaches the workers, too, which would print a traceback each.
    ignored = (signal.SIGINT, signal.SIG_IGN)
    try:
        with (
            DelayedInterrupt() as interrupt,
            ProcessPoolExecutor(workers, None, signal.signal, ignored) as pool,
        ):
            for run in pool.map(load_run, paths, names):
                interrupt.check()
                runs.append(run)
            interrupt.check()
    except BrokenProcessPool as error:
        raise InputError("reading the runs: a process was killed, expected enough memory") from error
    return runs
