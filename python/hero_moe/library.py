"""Loads libhero.so, whose operators are `torch.ops.hero.*`.

The library is the file in the environment variable HERO_LIBRARY, else the one installed next to this module,
else `build/libhero.so` of this checkout. With a CUDA device, libhero_cuda.so from the same folder is loaded
too, if it was built; without it the device runs the reference implementations of the operators.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch


def library_path() -> Path:
    """The path of libhero.so. ImportError if it is not found."""
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
    looked = " nor ".join(map(str, places))
    raise ImportError(f"libhero.so: found neither {looked}; run `pip install .` or `make build`")


def _plan_shapes(ids: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """Fake kernel of hero::plan_assignments; the number of kept rows depends on the data."""
    rows = torch.library.get_ctx().new_dynamic_size(min=0)
    return ids.new_empty(experts), ids.new_empty(experts + 1), ids.new_empty(rows), torch.empty_like(ids)


def load_library() -> None:
    """Makes `torch.ops.hero.*` available, once. ImportError on failure."""
    if hasattr(torch.ops.hero, "route"):
        return
    path = library_path()
    kernels = path.with_name("libhero_cuda.so")
    for library in [path, kernels] if torch.cuda.is_available() and kernels.is_file() else [path]:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise ImportError(
                f"{library}: cannot be loaded with torch {torch.__version__}: {error}"
            ) from error
    torch.library.register_fake("hero::plan_assignments")(_plan_shapes)


load_library()
