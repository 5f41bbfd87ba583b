"""Experiment trackers. Their packages are imported only when used, and their own output is discarded."""

from __future__ import annotations

import contextlib
import contextvars
import io
import logging
import os
import time
from pathlib import Path
from typing import Any, Protocol


class Backend(Protocol):
    """A tracker's run. Steps are sent in ascending order."""

    def open(self, folder: Path, project: str, name: str, id: str, config: dict[str, Any]) -> str:
        """Starts a run, or continues the one with this id if it is not empty; returns the id."""

    def last_step(self) -> int | None:
        """The last step of a continued run that the tracker has stored; None if it cannot tell."""

    def send(self, step: int, metrics: dict[str, float]) -> None: ...

    def update_config(self, changed: dict[str, Any]) -> bool:
        """Replaces values of the configuration; False if the tracker keeps the first ones."""

    def finish(self) -> None:
        """Returns when everything is stored."""


class Wandb:
    """Files are below RUN/wandb. The history of a run is append-only."""

    def __init__(self, offline: bool) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._wandb, self._offline = wandb, offline

    def open(self, folder: Path, project: str, name: str, id: str, config: dict[str, Any]) -> str:
        self._run = self._wandb.init(
            project=project,
            name=name,
            id=id or None,
            resume="allow" if id else None,
            mode="offline" if self._offline else None,
            dir=folder,
            config=config,
            allow_val_change=True,
            reinit="create_new",
        )
        return str(self._run.id)

    def last_step(self) -> int | None:
        # Without a connection a continued run starts from 0.
        return self._run.step - 1 if self._run.resumed and not self._run.offline else None

    def send(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def update_config(self, changed: dict[str, Any]) -> bool:
        self._run.config.update(changed, allow_val_change=True)
        return True

    def finish(self) -> None:
        self._run.finish()


class Mlflow:
    """The project is an experiment. MLFLOW_TRACKING_URI says where runs are stored."""

    PARAMETERS, METRICS = 100, 1000  # per request

    def __init__(self) -> None:
        import mlflow
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client, self._metric, self._param = MlflowClient(mlflow.get_tracking_uri()), Metric, Param

    def open(self, folder: Path, project: str, name: str, id: str, config: dict[str, Any]) -> str:
        self._last = None
        if id:
            self._id = self._client.get_run(id).info.run_id
            stored = self._client.get_metric_history(id, "tokens")
            self._last = max((metric.step for metric in stored), default=0)
            self._client.update_run(id, status="RUNNING")
            return id
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(project)
        self._id = self._client.create_run(experiment_id, run_name=name).info.run_id
        items = [self._param(key, str(value)) for key, value in config.items()]
        for i in range(0, len(items), self.PARAMETERS):
            self._client.log_batch(self._id, params=items[i : i + self.PARAMETERS])
        return self._id

    def last_step(self) -> int | None:
        return self._last

    def send(self, step: int, metrics: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        # last_step() reads `tokens`, so it is the last one.
        names = sorted(metrics, key=lambda name: name == "tokens")
        items = [self._metric(name, float(metrics[name]), now, step) for name in names]
        for i in range(0, len(items), self.METRICS):
            self._client.log_batch(self._id, metrics=items[i : i + self.METRICS])

    def update_config(self, changed: dict[str, Any]) -> bool:
        return False

    def finish(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Stored where TRACKIO_DIR says, or on the server of TRACKIO_SERVER_URL or TRACKIO_SPACE_ID."""

    def __init__(self) -> None:
        import trackio

        self._trackio = trackio

    def open(self, folder: Path, project: str, name: str, id: str, config: dict[str, Any]) -> str:
        def start() -> Any:
            return self._trackio.init(
                project=project,
                name=name,
                config=config,
                resume="must" if id else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

        # In a context of its own, because init() finishes the run that is current in its context.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = contextvars.Context().run(start)
        if id and self._run.id != id:
            raise RuntimeError(f"project {project} has a newer run {name}, expected the one with id {id}")
        return str(self._run.id)

    def last_step(self) -> int | None:
        return None

    def send(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def update_config(self, changed: dict[str, Any]) -> bool:
        return False

    def finish(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}


def make_backend(kind: str, offline: bool) -> Backend:
    """Raises `ModuleNotFoundError` if its package is not installed."""
    if kind == "wandb":
        return Wandb(offline)
    return Mlflow() if kind == "mlflow" else Trackio()
