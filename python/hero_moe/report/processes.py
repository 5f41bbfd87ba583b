"""Tasks on all cores, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from hero_moe.delayed_interrupt import DelayedInterrupt
from hero_moe.report.json_lines import InputError

Result = TypeVar("Result")
_tasks: Sequence[Callable[[], Any]] = ()  # of this worker's pool


def _start_worker(tasks: Sequence[Callable[[], Any]]) -> None:
    global _tasks
    _tasks = tasks
    # Ctrl-C reaches the workers, too, which would print a traceback each.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(index: int) -> Any:
    return _tasks[index]()


def run_tasks(tasks: Sequence[Callable[[], Result]], what: str, *, parallel: bool) -> list[Result]:
    """The results in order. `parallel`: from one process per core, unless there is one core or one task.

    The processes are forks, so that tasks can refer to any objects; only results are pickled. Raises the exception of
    the first task that fails, `InputError`, prefixed with `what`, if the kernel kills a process, and
    `KeyboardInterrupt` between two tasks.
    """
    workers = min(len(tasks), len(os.sched_getaffinity(0)))
    if not parallel or workers < 2:
        return [task() for task in tasks]
    results: list[Result] = []
    context = multiprocessing.get_context("fork")
    try:
        with (
            DelayedInterrupt() as interrupt,
            ProcessPoolExecutor(workers, context, _start_worker, (tasks,)) as pool,
        ):
            for result in pool.map(_run, range(len(tasks))):
                interrupt.check()
                results.append(result)
            interrupt.check()
    except BrokenProcessPool as error:
        raise InputError(f"{what}: a process was killed, expected enough memory") from error
    return results
