"""Generation throughput with KV cache: our engine from Python against transformers, on the same folders.

Writes docs/results/PROCESSOR/generate-speed.md. Greedy decoding; a baseline and a HERO model, batch sizes 1 and 16.
Compares the best setting of each engine: fp32 or bf16, and for transformers the cache implementation.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rounds import (
    PROGRAM,
    ROOT,
    Target,
    best_of,
    cpu_page,
    own_command,
    parser,
    ratios_per_round,
    round_robin,
    spread,
    table,
    transformers_dtypes,
    write_page,
)
from token_files import write_tokens

sys.path.insert(0, str(ROOT / "python"))


def export(work: Path, config: str, kind: str, more: Sequence[str] = ()) -> Path:
    """A model folder of this configuration with its initial weights, which are the same for all kinds of routers: HERO
    has the cost of its history, but selects the baseline's experts, so that both use equal parts of the weights."""
    run, folder = work / f"run-{kind}", work / kind
    prefix = write_tokens(work, 8192)
    command = [PROGRAM, "train", "--config", ROOT / f"configs/{config}.toml", f"--router.kind={kind}"]
    command += ["--data", prefix, "--run", run, "--train.steps=1", "--optim.warmup_steps=1", "--eval.every=0"]
    command += ["--optim.lr=1e-12", "--optim.min_lr=0"]  # the single step changes nothing
    command += ["--router.init=zero"] if kind == "hero" else []
    for words in ([*command, *more], [PROGRAM, "export", run, folder]):
        subprocess.run([str(word) for word in words], check=True, capture_output=True)
    return folder


def generate_ours(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    """New ids for every prompt; several prompts as a batch."""
    options: dict[str, Any] = {"max_tokens": new, "temperature": 0.0, "eos": ()}
    if len(prompts) == 1:
        return [model.generate(prompts[0], **options)]
    return model.generate(prompts, **options)


def generate_theirs(model: Any, cache: str, prompts: Any, new: int) -> list[list[int]]:
    """New ids for every row of the prompts [B, S]."""
    out = model.generate(
        prompts, max_new_tokens=new, min_new_tokens=new, do_sample=False, cache_implementation=cache,
        disable_compile=True, pad_token_id=0,
    )  # fmt: skip
    return out[:, prompts.shape[1] :].tolist()


def timed(work: Callable[[], list[list[int]]], new: int) -> float:
    """Tokens per second of one call."""
    begin = time.perf_counter()
    texts = work()
    seconds = time.perf_counter() - begin
    if any(len(text) != new for text in texts):
        raise RuntimeError(f"generated {[len(text) for text in texts]} ids, expected {new} each")
    return len(texts) * new / seconds


def candidates(
    folder: Path, prompts: list[list[int]], new: int, quick: bool
) -> dict[str, Callable[[], float]]:
    import torch
    import transformers

    import hero_moe

    found: dict[str, Callable[[], float]] = {}
    for dtype in ("bf16",) if quick else ("fp32", "bf16"):
        model = hero_moe.load(folder, dtype=dtype, device="cpu")
        found[f"hero_moe.load, {dtype}"] = partial(timed, partial(generate_ours, model, prompts, new), new)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for dtype in ("fp32",) if quick else transformers_dtypes()[0]:
        for cache in ("dynamic",) if quick else ("dynamic", "static"):
            theirs = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=types[dtype], trust_remote_code=True
            )
            run = partial(generate_theirs, theirs.eval(), cache, torch.tensor(prompts), new)
            found[f"transformers, {dtype}, {cache} cache"] = partial(timed, run, new)
    return found


def main() -> None:
    args_parser = parser(__doc__, cpu_page("generate-speed.md"))
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument("--prompt", type=int, default=32, help="length of a prompt in ids")
    args_parser.add_argument("--new", type=int, default=128, help="ids to generate")
    args_parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    args = args_parser.parse_args()
    if args.quick:
        args.rounds, args.new = 1, 8
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    lines, targets = [], []
    with tempfile.TemporaryDirectory() as work:
        for kind in ("baseline", "hero"):
            folder = export(Path(work), args.config, kind)
            for batch in args.batches:
                prompts = torch.randint(
                    8192, (batch, args.prompt), generator=torch.manual_seed(batch)
                ).tolist()
                runs = candidates(folder, prompts, args.new, args.quick)
                for candidate in runs.values():  # warm-up
                    candidate()
                rates = round_robin(runs, args.rounds, "tokens/s")
                ours, theirs = best_of(rates, "hero_moe"), best_of(rates, "transformers")
                ratio = ratios_per_round(rates[ours], rates[theirs])
                rows = [
                    [name, spread(values, 0), spread(ratios_per_round(values, rates[theirs]))]
                    for name, values in rates.items()
                ]
                lines += [
                    f"## {'HERO' if kind == 'hero' else 'Baseline'}, batch {batch}",
                    "",
                    *table(["", "tokens/s, median (range over rounds)", f"ratio to {theirs}"], rows),
                    "",
                ]
                what = f"generation, batch {batch}, {kind}, vs. best of transformers"
                targets.append(Target(what, 5.0, ratio, own_command()))
    head = f"`configs/{args.config}.toml`, greedy, prompts of {args.prompt} ids, {args.new} new ids each."
    missing = transformers_dtypes()[1]
    write_page(args, "Generation speed", [head, *([missing] if missing else []), "", *lines], targets)


if __name__ == "__main__":
    main()
