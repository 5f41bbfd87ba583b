"""Tokens generated a second with a cache: our engine from Python against transformers, on the same folders.

Writes docs/results/generate-speed.md. Greedy; a baseline and a HERO model, one text at a time and 16 together.
Both sides may choose fp32 or bf16, transformers also its cache; compared are the best of each.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rounds import (
    PROGRAM,
    ROOT,
    Target,
    best_of,
    in_turn,
    own_command,
    parser,
    spread,
    table,
    types_of_transformers,
    within_rounds,
    write_page,
)
from train_speed import write_tokens

sys.path.insert(0, str(ROOT / "python"))


def export(work: Path, config: str, kind: str) -> Path:
    """A model folder of this configuration, after a single step."""
    run, folder = work / f"run-{kind}", work / kind
    prefix = write_tokens(work, 8192)
    command = [PROGRAM, "train", "--config", ROOT / f"configs/{config}.toml", f"--router.kind={kind}"]
    command += ["--data", prefix, "--run", run, "--train.steps=1", "--optim.warmup_steps=1"]
    for words in (command, [PROGRAM, "export", run, folder]):
        subprocess.run([str(word) for word in words], check=True, capture_output=True)
    return folder


def generate_ours(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    """New ids for every prompt, all prompts together where there are several."""
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
    """Tokens a second of one call."""
    begin = time.perf_counter()
    texts = work()
    seconds = time.perf_counter() - begin
    if any(len(text) != new for text in texts):
        raise RuntimeError(f"texts of {[len(text) for text in texts]} ids, expected {new} each")
    return len(texts) * new / seconds


def contestants(
    folder: Path, prompts: list[list[int]], new: int, quick: bool
) -> dict[str, Callable[[], float]]:
    import torch
    import transformers

    import hero_moe

    made: dict[str, Callable[[], float]] = {}
    for dtype in ("bf16",) if quick else ("fp32", "bf16"):
        model = hero_moe.load(folder, dtype=dtype, device="cpu")
        made[f"hero_moe.load, {dtype}"] = partial(timed, partial(generate_ours, model, prompts, new), new)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for dtype in ("fp32",) if quick else types_of_transformers()[0]:
        for cache in ("dynamic",) if quick else ("dynamic", "static"):
            theirs = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=types[dtype], trust_remote_code=True
            )
            run = partial(generate_theirs, theirs.eval(), cache, torch.tensor(prompts), new)
            made[f"transformers, {dtype}, {cache} cache"] = partial(timed, run, new)
    return made


def main() -> None:
    args_parser = parser(__doc__, "generate-speed.md")
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument("--prompt", type=int, default=32, help="ids of a prompt")
    args_parser.add_argument("--new", type=int, default=128, help="ids to make")
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
                made = contestants(folder, prompts, args.new, args.quick)
                for contestant in made.values():  # kernels are generated, pages found
                    contestant()
                rates = in_turn(made, args.rounds, "tokens/s")
                ours, theirs = best_of(rates, "hero_moe"), best_of(rates, "transformers")
                ratio = within_rounds(rates[ours], rates[theirs])
                rows = [
                    [name, spread(values, 0), spread(within_rounds(values, rates[theirs]))]
                    for name, values in rates.items()
                ]
                lines += [
                    f"## {'HERO' if kind == 'hero' else 'Baseline'}, batch {batch}",
                    "",
                    *table(["", "tokens/s, median (range over rounds)", f"ratio to {theirs}"], rows),
                    "",
                ]
                what = f"generation, batch {batch}, {kind}, over transformers' best"
                targets.append(Target(what, 5.0, ratio, own_command()))
    head = f"`configs/{args.config}.toml`, greedy, prompts of {args.prompt} ids, {args.new} new ids each."
    missing = types_of_transformers()[1]
    write_page(args, "Generation speed", [head, *([missing] if missing else []), "", *lines], targets)


if __name__ == "__main__":
    main()
