"""How OpenMP threads wait for each other."""

from __future__ import annotations

import os


def limit_spinning() -> None:
    """Lets OpenMP threads that wait for others sleep after about 0.1 ms instead of several.

    With other processes on the cores, long spinning makes a training step up to 15 times longer; without, the limit
    makes no difference to training, but a shorter one slows down the generation of few sequences. libgomp reads it when
    it is loaded: it has no effect if torch was imported before. The program `hero` sets the same value
    (src/cli/launcher.cpp).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "8000")
