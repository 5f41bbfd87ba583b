"""Throughput of `hero serve` and of vLLM's server on the same model folder, under the same clients.

Writes docs/results/PROCESSOR/serve-speed.md. Greedy completions of token ids over HTTP, without streaming; both
return text. A baseline model; HERO, which only our server runs, is compared with our baseline. llama.cpp is not
measured: the server of llama-cpp-python answers one request at a time, and bench/generate_peers.py measures its engine.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from generate_speed import export
from peers.process import installed, missing, python
from peers.server import Server
from peers.targets import PAIR_IDS, hero_over_baseline, targets_of
from peers.vllm_settings import TYPES, variables
from rounds import (
    PROGRAM,
    ROOT,
    Target,
    cpu_page,
    note,
    paired_ratio,
    parser,
    round_robin,
    spread,
    table,
    write_page,
)

CLIENTS, QUICK_CLIENTS = (1, 16, 64), (1, 4)
PROMPT, NEW = 32, 128
VOCABULARY = 8192
PAIR_SECONDS = 12.0  # of HERO and baseline in turn, per round
Requests = list[list[dict[str, Any]]]  # of every client


def add_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of the documentation for a model folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [path.read_text() for path in sorted(ROOT.glob("**/*.md"))]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    missing_ids = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<unused{i}>" for i in range(missing_ids)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}'
    (folder / "tokenizer_config.json").write_text(config)


def requests(clients: int, each: int, new: int) -> Requests:
    """Different prompts in every request; the same ones for every server."""
    rng = random.Random(clients)
    common = {"model": "m", "max_tokens": new, "temperature": 0, "ignore_eos": True}
    return [
        [common | {"prompt": [rng.randrange(1, VOCABULARY) for _ in range(PROMPT)]} for _ in range(each)]
        for _ in range(clients)
    ]


def ours(folder: Path, dtype: str) -> Server:
    words = ["--dtype", dtype, "--device", "cpu", "--max-batch", max(CLIENTS), "--model-name", "m"]
    return Server([PROGRAM, "serve", folder, *words])


def vllm(folder: Path, dtype: str, mode: str) -> Server:
    words = [
        "--model",
        folder,
        "--served-model-name",
        "m",
        "--dtype",
        TYPES[dtype],
        "--no-enable-prefix-caching",
    ]
    words += ["--max-num-seqs", max(CLIENTS), *(["--enforce-eager"] if mode == "eager" else [])]
    command = [python("vllm"), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", *words]
    return Server(command, variables())


def start(
    folders: dict[str, Path], quick: bool, dtypes: Sequence[str], stack: ExitStack
) -> dict[str, Server]:
    servers: dict[str, Callable[[], Server]] = {}
    for dtype in dtypes:
        for kind, folder in folders.items():
            servers[f"hero serve, {kind}, {dtype}"] = lambda f=folder, d=dtype: ours(f, d)
        for mode in ("eager",) if quick else ("eager", "compiled"):
            if installed("vllm"):
                folder = folders["baseline"]
                servers[f"vLLM, {mode}, {dtype}"] = lambda f=folder, d=dtype, m=mode: vllm(f, d, m)
    found = {}
    for name, begin in servers.items():
        note(f"starting {name}")
        found[name] = stack.enter_context(closing(begin()))
    return found


def paired_load(servers: dict[str, Server], bodies: Requests, seconds: float, dtype: str) -> float:
    """HERO's throughput over the baseline's."""
    baseline, hero = (servers[f"hero serve, {kind}, {dtype}"] for kind in ("baseline", "HERO"))
    return paired_ratio(lambda: hero.load(bodies)[0], lambda: baseline.load(bodies)[0], seconds)


def main() -> None:
    args_parser = parser(__doc__, cpu_page("serve-speed.md"), rounds=3)
    args_parser.add_argument("--config", default="small-qwen3")
    args_parser.add_argument("--each", type=int, default=3, help="requests of every client, at least")
    args_parser.add_argument("--requests", type=int, default=16, help="requests of all clients, at least")
    args = args_parser.parse_args()
    new, pair_seconds = (8, 0.1) if args.quick else (NEW, PAIR_SECONDS)
    if args.quick:
        args.rounds, args.each, args.requests = 1, 1, 1
    lines: list[str] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        folders = {}
        for name, kind in (("baseline", "baseline"), ("HERO", "hero")):
            folders[name] = export(Path(work), args.config, kind)
            add_tokenizer(folders[name])
        dtypes = ("bf16",) if args.quick else ("fp32", "bf16")
        servers = start(folders, args.quick, dtypes, stack)
        for clients in QUICK_CLIENTS if args.quick else CLIENTS:
            bodies = requests(clients, max(args.each, args.requests // clients), new)
            seconds: dict[str, list[float]] = {name: [] for name in servers}

            def measure(name: str, bodies: Any = bodies, seconds: Any = seconds) -> float:
                rate, latency = servers[name].load(bodies)
                seconds[name].append(latency)
                return rate

            first = [client[:1] for client in bodies]
            short = [[body | {"max_tokens": min(new, PAIR_IDS)} for body in client] for client in first]
            for server in servers.values():  # warm-up
                server.load(first)
            runs = {name: (lambda name=name: measure(name)) for name in servers}
            rates = round_robin(runs, args.rounds, "tokens/s")
            rows = [[name, spread(values, 0), spread(seconds[name])] for name, values in rates.items()]
            head = ["", "new tokens/s, median (range over rounds)", "median seconds of a request"]
            what = f"{clients} client{'s' * (clients > 1)}"
            lines += [f"## {what}", "", *table(head, rows), ""]
            paired = partial(paired_load, servers, short, pair_seconds)
            pairs, line = hero_over_baseline(paired, dtypes, args.rounds)
            lines += [line, ""]
            targets += targets_of(rates, "hero serve", f"serving, {what}", pairs)
    about = (
        f"`configs/{args.config}.toml`, greedy: prompts of {PROMPT} ids, {new} new ids; at least {args.each} requests of "
        f"every client and {args.requests} in all. Pairs of calls: {pair_seconds:.0f} s per round, requests of up to "
        f"{PAIR_IDS} new ids. Up to {max(CLIENTS)} sequences at once. All servers but the measured one are suspended."
    )
    absent = [f"{line}\n" for line in missing("vllm")]
    write_page(args, "Serving: other servers", [about, "", *absent, *lines], targets)


if __name__ == "__main__":
    main()
