"""The models of a comparison: their names, files, and how to load them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import get_model

_STEP = re.compile(r"step-\d{8,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64", None: "auto"}


@dataclass(frozen=True)
class Model:
    """One row of the table."""

    name: str
    folder: Path
    """Contains config.json and the weights."""
    backend: str = "hero"
    """Our own engine, or "hf": transformers."""
    dtype: str | None = None
    device: str | None = None
    batch_size: str | None = None

    def identity(self) -> str:
        """A hash of the model: of a checkpoint's manifest, which contains the hash of every file; else of
        config.json and the names, sizes and times of the weight and tokenizer files."""
        digest = hashlib.sha256()
        manifest = self.folder / "manifest.json"
        if manifest.is_file():
            digest.update(manifest.read_bytes())
            return digest.hexdigest()
        digest.update((self.folder / "config.json").read_bytes())
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and (path.suffix == ".safetensors" or "token" in path.name):
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def open(self) -> LM:
        """Loads it as lm_eval's model `hero` or `hf`. `hf` runs the code in the model folder."""
        if self.backend == "hero":
            from hero_moe.evals.harness import HeroLM

            device: dict[str, Any] = {} if self.device is None else {"device": self.device}
            return HeroLM(str(self.folder), dtype=self.dtype, batch_size=self.batch_size, **device)
        arguments: dict[str, Any] = {
            "pretrained": str(self.folder),
            "dtype": _DTYPES[self.dtype],
            "batch_size": self.batch_size or 8,
            "trust_remote_code": True,
        }
        return get_model("hf")(**arguments, device=_torch_device(self.device))


def _torch_device(name: str | None) -> str:
    """The device of this name; by default a GPU, if there is one. Raises `ValueError` for other names."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(torch.device(name))
    except RuntimeError as error:
        raise ValueError(f"--device: found {name}, expected cpu or cuda") from error


def parse(words: list[str], **options: Any) -> list[Model]:
    """Models from "PATH" or "NAME=PATH"; the default name is the last path component.

    Raises:
        ValueError: for a path that is not a model folder, checkpoint or run folder, for invalid names and for
            duplicate names.
    """
    models: list[Model] = []
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = Path(word).resolve().name, word
        if not _NAME.fullmatch(name):
            expected = "expected letters, digits and . _ + -: NAME=PATH"
            raise ValueError(f"--models: found the name {name!r}, {expected}")
        if name in {model.name for model in models}:
            raise ValueError(f"--models: found {name} twice, expected a name for each: NAME=PATH")
        models.append(Model(name, _resolve(Path(path)), **options))
    return models


def _resolve(path: Path) -> Path:
    """The folder with config.json: of a run folder its latest checkpoint."""
    if (path / "config.json").is_file():
        return path
    checkpoints = [p for p in path.glob("checkpoints/step-*") if _STEP.fullmatch(p.name) and p.is_dir()]
    if not checkpoints:
        found = "neither config.json nor a checkpoint" if path.is_dir() else "no such folder"
        raise ValueError(f"{path}: found {found}, expected a run folder, a checkpoint or a model folder")
    latest = max(checkpoints, key=lambda p: int(p.name.removeprefix("step-")))
    if not (latest / "config.json").is_file():
        raise ValueError(f"{latest}: found no config.json, expected a checkpoint")
    return latest
