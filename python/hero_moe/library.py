"""Loads libhero.so, whose operators are `torch.ops.hero.*`.

The library is the file named by the environment variable HERO_LIBRARY, else the one installed beside this module, else
`build/libhero.so` of the checkout that this module belongs to.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch


def library_path() -> Path:
    """Where libhero.so is. ImportError if it is nowhere."""
    named = os.environ.get("HERO_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"HERO_LIBRARY: {named}: no such file, expected libhero.so")
        return Path(named)
    here = Path(__file__).resolve().parent
    places = (here / "libhero.so", here.parents[1] / "build" / "libhero.so")
    for place in places:
        if place.is_file():
            return place
    raise ImportError(f"libhero.so: found neither {' nor '.join(map(str, places))}; run `pip install .` or `make build`")


def _plan_shapes(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """Shapes of hero::plan_assignments: how many rows are kept depends on the data."""
    rows = torch.library.get_ctx().new_dynamic_size(min=0)
    return ids.new_empty(experts), ids.new_empty(experts + 1), ids.new_empty(rows), torch.empty_like(ids)


def load_library() -> None:
    """Makes `torch.ops.hero.*` available; a second call does nothing. ImportError if the library cannot be loaded."""
    if hasattr(torch.ops.hero, "route"):
        return
    path = library_path()
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(f"{path}: not loadable with torch {torch.__version__}: {error}") from error
    torch.library.register_fake("hero::plan_assignments")(_plan_shapes)


load_library()
