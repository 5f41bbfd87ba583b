"""Generation and prefill throughput: our engine against vLLM and llama.cpp on the same model folder.

Writes docs/results/PROCESSOR/generate-peers.md. Greedy decoding in equal precision; every engine stays loaded, and
those of other projects run in processes of their own environments (scripts/install_peers.sh). One that is not
installed is left out. A baseline model; HERO, which only our engine runs, is compared with our baseline.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from generate_speed import export, generate_ours
from peers.process import DTYPES, ENGINES, PEERS, Peer, installed, missing
from peers.targets import PAIR_IDS, hero_over_baseline, targets_of
from rounds import (
    ROOT,
    Target,
    cpu_page,
    note,
    paired_ratio,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    write_page,
)

sys.path.insert(0, str(ROOT / "python"))

# Sequences, length of a prompt, new ids.
CASES = [(1, 32, 128), (16, 32, 128), (64, 32, 128), (1, 512, 1), (16, 512, 1), (16, 500, 1)]
QUICK = [(2, 8, 4), (1, 16, 1)]
WARM_UP_IDS = 8  # new ids of each engine's first call, at most
PAIRS = 12  # of calls of a baseline and a HERO model, at least: single ones vary by 5 to 10%
MEASURE_SECONDS = 1.0  # a prompt takes 15 ms, and the machine may be shared
Prompts = list[list[int]]
# Seconds and the new ids of every prompt.
Engine = Callable[[Prompts, int], tuple[float, Prompts]]


def tokens_per_second(engine: Engine, prompts: Prompts, new: int) -> float:
    """New tokens, or those of the prompts where a single one is generated, in the median time of as many calls as
    MEASURE_SECONDS take."""
    times: list[float] = []
    while sum(times) < MEASURE_SECONDS:
        seconds, ids = engine(prompts, new)
        if [len(text) for text in ids] != [new] * len(prompts):
            raise RuntimeError(f"generated {[len(text) for text in ids]} ids, expected {new} each")
        times.append(seconds)
    return len(prompts) * (len(prompts[0]) if new == 1 else new) / statistics.median(times)


def paired_calls(engines: dict[str, Engine], prompts: Prompts, new: int, count: int, dtype: str) -> float:
    """HERO's throughput over the baseline's."""
    baseline, hero = (engines[f"hero_moe, {kind}, {dtype}"] for kind in ("baseline", "HERO"))
    ids = min(new, PAIR_IDS)
    return paired_ratio(
        lambda: baseline(prompts, ids)[0],
        lambda: hero(prompts, ids)[0],
        seconds=2 * MEASURE_SECONDS,
        pairs=count,
    )


def load_ours(folder: Path, dtype: str) -> Engine:
    import hero_moe

    model = hero_moe.load(folder, dtype=dtype, device="cpu")

    def generate(prompts: Prompts, new: int) -> tuple[float, Prompts]:
        begin = time.perf_counter()
        ids = generate_ours(model, prompts, new)
        return time.perf_counter() - begin, ids

    return generate


def load_engines(
    folders: dict[str, Path], quick: bool, vllm_modes: list[str], stack: ExitStack
) -> dict[str, Engine]:
    """Every engine in every precision, by its name on the page."""
    engines: dict[str, Engine] = {}
    peers: dict[str, Peer] = {}
    for dtype in ("fp32", "bf16"):
        for kind, folder in folders.items():
            engines[f"hero_moe, {kind}, {dtype}"] = load_ours(folder, dtype)
    for name in installed(*ENGINES):
        modes = vllm_modes if name == "vllm" else [""]
        for dtype in DTYPES[name][:1] if quick else DTYPES[name]:
            for mode in modes:
                title = ", ".join(word for word in (PEERS[name], mode, dtype) if word)
                note(f"loading {title}")
                words = [dtype, *([mode] if mode else [])]
                peers[title] = stack.enter_context(closing(Peer(name, folders["baseline"], *words)))
    # Together: vLLM compiles for minutes, mostly in one thread.
    for title, peer in peers.items():
        peer.wait_until_loaded()
        engines[title] = peer.generate
    return engines


def compared(rates: dict[str, list[float]], name: str) -> list[str]:
    """The last column of an engine's row."""
    ours = rates.get(f"hero_moe, baseline, {name.split(', ')[-1]}")
    return [spread(ratios_per_round(ours, rates[name])) if ours else ""]


def main() -> None:
    args_parser = parser(__doc__, cpu_page("generate-peers.md"))
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument(
        "--essential", action="store_true", help="leave out vLLM's eager mode and prompts of 500 ids"
    )
    args = args_parser.parse_args()
    if args.quick:
        args.rounds = 1
    cases = QUICK if args.quick else CASES[:-1] if args.essential else CASES
    vllm_modes = ["eager"] if args.quick else ["compiled"] if args.essential else ["eager", "compiled"]
    import torch

    lines: list[str] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        folders = {
            name: export(Path(work), args.config, kind, ["--model.max_position_embeddings=1024"])
            for name, kind in (("baseline", "baseline"), ("HERO", "hero"))
        }
        engines = load_engines(folders, args.quick, vllm_modes, stack)
        for batch, length, new in cases:
            ids = torch.randint(8192, (batch, length), generator=torch.manual_seed(batch))
            prompts = ids.tolist()
            runs = {n: partial(tokens_per_second, engine, prompts, new) for n, engine in engines.items()}
            for engine in engines.values():
                engine(prompts, min(new, WARM_UP_IDS))
            rates = round_robin(runs, args.rounds, "tokens/s")
            what = f"prefill of {length} ids" if new == 1 else "generation"
            what += f", {batch} sequences" if batch > 1 else ", 1 sequence"
            rows = [[name, spread(values, 0), *compared(rates, name)] for name, values in rates.items()]
            head = ["", "tokens/s, median (range over rounds)", "ours in the same precision over it"]
            paired = partial(paired_calls, engines, prompts, new, 1 if args.quick else PAIRS)
            pairs, line = hero_over_baseline(paired, ("fp32", "bf16"), args.rounds)
            lines += [f"## {what[0].upper()}{what[1:]}", "", *table(head, rows), ""]
            lines += [line, ""]
            targets += targets_of(rates, "hero_moe", what, pairs)
    about = (
        f"`configs/{args.config}.toml`, greedy. Generation: prompts of 32 ids, 128 new ids each. Prefill: one new id, "
        "tokens of the prompts per second. Ratios per round; a baseline model unless HERO is named. Pairs of calls: at "
        f"least {PAIRS} per round, of up to {PAIR_IDS} new ids. Every engine is loaded once; all but the measured one are "
        "suspended."
    )
    absent = [f"{line}\n" for line in missing(*ENGINES)]
    write_page(args, "Generation: other engines", [about, "", *absent, *lines], targets)


if __name__ == "__main__":
    main()
