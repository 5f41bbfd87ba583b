"""Injects faults into training runs and prints how many there were; see `--help`. scripts/faults.sh runs it."""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults import ranks_of_four, single
from faults.processes import close_network
from faults.runs import Case, Reference

CALLS = ("open", "write", "fsync", "rename", "mkdir", "truncate", "remove", "close")
# Cases of each kind, with --quick. Every case of `kill` has four kills.
Function = Callable[[Case, Reference], bool | None]
# A kind's function, its number of cases, and that with --quick. Every case of `kill` has four kills.
KINDS: dict[str, tuple[Function, int, int]] = {
    "kill": (single.kill, 25, 3),
    "rank-killed": (partial(ranks_of_four.lose, how="killed"), 17, 2),
    "rank-stopped": (partial(ranks_of_four.lose, how="stopped"), 17, 2),
    "rank-partitioned": (partial(ranks_of_four.lose, how="partitioned"), 16, 2),
    "rank-slow": (ranks_of_four.slow, 8, 1),
    "rank-clock": (ranks_of_four.clock, 4, 1),
    "clock": (single.clock, 10, 1),
    "disk": (single.disk, 20, 2),
}
# Until a run makes fewer calls; with --quick only the first ones.
for call in CALLS:
    KINDS[call] = partial(single.call, name=call), 10_000, 3
    KINDS[f"{call}-on-resume"] = partial(single.call_on_resume, name=call), 10_000, 3


def run_case(kind: str, number: int, seed: int, reference: Reference) -> tuple[Counter[str] | None, bool]:
    """The counts of a case, None if it failed; and whether its fault was reached."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{number}-", dir=reference.folder))
    case = Case(kind, number, random.Random(f"{seed}/{kind}/{number}"), folder)
    try:
        reached = KINDS[kind][0](case, reference) is not False
    except Exception as error:
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        print(f"failed: {error}\n  reproduce: scripts/faults.sh --seed {seed} {kind}:{number}", flush=True)
        return None, True
    shutil.rmtree(folder)
    return case.counts, reached


def selected(text: str, quick: bool) -> tuple[str, range]:
    match = re.fullmatch(r"([a-z-]+)(?::(\d+)(?:-(\d+))?)?", text)
    if not match or match[1] not in KINDS:
        sys.exit(f"{text}: expected KIND[:FIRST[-LAST]], one of {', '.join(KINDS)}")
    kind, first, last = match.groups()
    _, cases, quick_cases = KINDS[kind]
    if first is None:
        return kind, range(quick_cases if quick else cases)
    return kind, range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults.sh", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="KIND[:FIRST[-LAST]]", default=list(KINDS), help=f"default: all; {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few cases of every kind")
    parser.add_argument("--out", type=Path, help="appends one JSON line for each case")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes of the network too
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    reference, failed = Reference(folder), 0
    print(f"seed {arguments.seed}, folder {folder}", flush=True)
    try:
        for kind, numbers in (selected(text, arguments.quick) for text in arguments.cases):
            total: Counter[str] = Counter()
            for number in numbers:
                counts, reached = run_case(kind, number, arguments.seed, reference)
                if not reached:
                    break
                failed += counts is None
                total += Counter(cases=1, failed=int(counts is None)) + (counts or Counter())
                if arguments.out:
                    with arguments.out.open("a") as out:
                        out.write(json.dumps({"kind": kind, "case": number, "counts": counts}) + "\n")
            print(f"{kind}: " + ", ".join(f"{v} {k}" for k, v in total.items()), flush=True)
    finally:
        close_network()
    if not failed:
        shutil.rmtree(folder)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
