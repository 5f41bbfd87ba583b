"""Sends run folders to a tracker, live or afterwards."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hero_moe.report.json_lines import InputError, read
from hero_moe.report.run_files import flatten as flatten_config
from hero_moe.track.backends import Backend
from hero_moe.track.records import Follower, flatten
from hero_moe.track.state import State, digest, load_state

POLL_SECONDS = 1.0
LINE_SECONDS = 10.0


def say(line: str) -> None:
    print(f"track: {line}", file=sys.stderr, flush=True)


def read_config(folder: Path) -> dict[str, Any]:
    """The flat configuration of a run: `{"router.kind": "hero"}`. Raises `InputError`."""
    path = folder / "config.toml"
    try:
        return flatten_config(tomllib.loads(read(path).decode("utf-8")))
    except ValueError as error:
        raise InputError(f"{path}: invalid TOML ({error}), expected a run's configuration") from error


class TrackedRun:
    """One run folder and its run in the tracker. `backend` is called once, when the run has metrics. A new run
    is called `name`, or else `default_name` (None: as the folder)."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        project: str | None,
        name: str | None,
        backend: Callable[[], Backend],
        *,
        default_name: str | None = None,
    ) -> None:
        self._folder, self._kind, self._make = folder, kind, backend
        self._path = folder / f"track-{kind}.json"
        self._state = load_state(self._path, project, name) or State(
            project or "hero-moe", name or default_name or folder.name
        )
        self._follower = Follower(folder / "metrics.jsonl")
        self._backend: Backend | None = None
        self._newest = 0  # step of the last line read
        self._repeated = False
        self.sent = 0

    @property
    def has_metrics(self) -> bool:
        return (self._folder / "config.toml").exists() and (self._folder / "metrics.jsonl").exists()

    @property
    def finished(self) -> bool:
        """Whether the tracker has the last step of the run."""
        last = self._state.config.get("train.steps")
        return last is not None and self._newest >= last

    @property
    def summary(self) -> str:
        return f"{self._folder}: step {self._state.step} in {self._kind} ({self._state.id}), {self.sent} sent now"

    def poll(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Sends what is new, until `stopped()`. Raises `InputError` and the exceptions of the tracker."""
        if not self.has_metrics:
            return
        self._open()
        saved, at = self.sent, time.monotonic()
        try:
            for step, record in self._follower.read():
                self._send(step, record)
                if stopped():
                    break
                if self.sent != saved and time.monotonic() - at >= POLL_SECONDS:
                    self._state.save(self._path)
                    saved, at = self.sent, time.monotonic()
        finally:  # the tracker has the steps before one that fails
            if self.sent != saved:
                self._state.save(self._path)
        if damaged := self._follower.damaged:
            say(
                f"{damaged[0]}: damaged, skipped"
                + (f", and {len(damaged) - 1} more lines" * (len(damaged) > 1))
            )

    def _send(self, step: int, record: dict[str, Any]) -> None:
        assert self._backend
        state = self._state
        repeated = step <= self._newest < state.step + 1
        # Another record of the last step that an earlier process sent: the run was resumed in between.
        repeated |= step == state.step and state.record not in ("", digest(record))
        if repeated and not self._repeated:
            self._repeated = True
            say(
                f"{self._folder}: repeats steps up to {state.step}, as after a resume; {self._kind} keeps the "
                "values that it has"
            )
        self._newest = step
        if step <= state.step:
            return
        self._repeated = False
        self._backend.send(step, flatten(record))
        state.step, state.record = step, digest(record)
        self.sent += 1

    def _open(self) -> None:
        config = read_config(self._folder)
        if self._backend and config == self._state.config:
            return
        changed = {key: value for key, value in config.items() if self._state.config.get(key) != value}
        if not self._backend:
            backend = self._make()
            known = self._state.id
            self._state.id = backend.open(self._folder, self._state.project, self._state.name, known, config)
            self._backend = backend
            stored = backend.last_step() if known else None
            if stored not in (None, self._state.step):
                self._state.step, self._state.record = stored, ""
            changed = changed if known else {}
        if changed and not self._backend.update_config(changed):
            keys = ", ".join(sorted(changed))
            say(f"{self._folder}: changed options: {keys}; {self._kind} keeps the values of the first start")
        self._state.config = config
        self._state.save(self._path)

    def close(self) -> None:
        if self._backend:
            self._backend.finish()


def follow(
    runs: Sequence[TrackedRun],
    *,
    once: bool,
    stopped: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Polls until every run has finished, `stopped()`, or, with `once`, once. Raises what `poll` raises."""
    shown = time.monotonic()
    try:
        while True:
            for run in runs:
                run.poll(stopped)
            if once or stopped() or all(run.finished for run in runs):
                return
            if time.monotonic() - shown >= LINE_SECONDS:
                shown = time.monotonic()
                for run in runs:
                    if run.sent and not run.finished:
                        say(run.summary)
            sleep(POLL_SECONDS)
    finally:
        for run in runs:
            run.close()
