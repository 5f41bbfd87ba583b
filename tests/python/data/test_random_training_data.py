"""Random data sets and options of data: the loss of each step of a run that changes no weight is the mean over
the targets that the slow reference of sample_order.py finds, with one or two processes, and `hero data show` counts
its samples."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer

import hero_moe
from data_files import shared_bpe
from program import checkpoint, metrics, run_hero, toml, write_megatron
from random_cases import Case, property_tests, reproduce
from random_text import END
from ranks import expect_ranks_succeed
from sample_order import Document, Phase, Reading, Sample, quota_method
from strategies import DrawFn

VOCABULARY = 512
CLOSE = 1e-9
MODEL: dict[str, Any] = {
    "model.model_type": "qwen3_moe", "model.vocab_size": VOCABULARY, "model.hidden_size": 16,
    "model.num_hidden_layers": 2, "model.num_attention_heads": 2, "model.num_key_value_heads": 1,
    "model.head_dim": 8, "model.num_experts": 4, "model.num_experts_per_tok": 2,
    "model.moe_intermediate_size": 8, "model.intermediate_size": 16, "model.max_position_embeddings": 32,
    "train.dtype": "fp64", "optim.lr": 1e-30, "optim.min_lr": 0.0, "router.balance_loss": 0.0, "checkpoint.every": 0,
}  # fmt: skip


def sources() -> st.SearchStrategy[Case]:
    """Documents of these lengths; with one of 12 tokens every source has a sample."""
    some = st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 30]), max_size=11)
    lengths = some.flatmap(lambda found: st.permutations([*found, 12]))
    return st.fixed_dictionaries(
        {
            "lengths": lengths,
            "held_out": lengths,
            "seed": st.integers(0, 2**32),
            "dtype": st.sampled_from(["uint16", "int32"]),
        }
    )


@st.composite
def phase_lists(draw: DrawFn, count: int, steps: int) -> list[Case]:
    """Phases that use the sources, each at most once per phase."""
    ends = draw(st.lists(st.integers(1, steps - 1), unique=True, max_size=2))
    out = []
    for end in [*sorted(ends), steps]:
        chosen = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
        weights = draw(
            st.lists(st.sampled_from([1, 2, 3, 0.7, 0.001]), min_size=len(chosen), max_size=len(chosen))
        )
        out.append({"until": end, "sources": chosen, "weights": weights})
    return out


@st.composite
def cases(draw: DrawFn) -> Case:
    found = draw(st.lists(sources(), min_size=1, max_size=3))
    steps = draw(st.integers(2, 7))
    ranks = draw(st.sampled_from([1, 1, 1, 2]))
    micro = draw(st.sampled_from([1, 2]))
    masked = draw(st.sampled_from([(False, False), (True, False), (True, True)]))
    return {
        "sources": found,
        "phases": draw(phase_lists(len(found), steps)),
        "eos": draw(st.booleans()),
        "ranks": ranks,
        "options": {
            "train.steps": steps,
            "train.sequence": draw(st.integers(1, 9)),
            "train.micro_batch": micro,
            "train.global_batch": micro * ranks * draw(st.integers(1, 3)),
            "train.seed": draw(st.integers(0, 2**31)),
            "train.pack": draw(st.sampled_from(["concat", "best_fit"])),
            "train.loss_mask": draw(st.booleans()),
            "train.document_mask": masked[0],
            "train.document_positions": masked[1],
            "eval.every": steps,
            "eval.batches": draw(st.integers(0, 2)),
            "router.kind": draw(st.sampled_from(["baseline", "hero"])),
        },
    }


def write_half(prefix: Path, lengths: list[int], rng: random.Random, eos: int, dtype: str) -> list[Document]:
    """Writes token files and a loss mask."""
    documents = []
    for length in lengths:
        ids = [rng.randrange(1, 300) for _ in range(length)]
        if ids and eos >= 0 and rng.random() < 0.5:
            ids[-1] = eos
        marks = [rng.random() < 0.6 or i == 11 for i in range(length)]
        documents.append(Document(tuple(ids), tuple(marks)))
    write_megatron(prefix, [list(document.ids) for document in documents], dtype)
    mask = prefix.with_name(prefix.name + "-mask")
    write_megatron(mask, [list(map(int, document.marks)) for document in documents], "uint8")
    return documents


def write_source(case: Case, prefix: Path, eos: int) -> tuple[list[Document], list[Document]]:
    """Writes training and validation halves and, unless `eos` is -1, the metadata."""
    rng = random.Random(case["seed"])
    halves = {"train": case["lengths"], "valid": case["held_out"]}
    written = [
        write_half(prefix.with_name(f"{prefix.name}-{half}"), lengths, rng, eos, case["dtype"])
        for half, lengths in halves.items()
    ]
    if eos >= 0:
        copy = prefix.with_name(prefix.name + ".tokenizer.json")
        shutil.copyfile(shared_bpe() / "tokenizer.json", copy)
        metadata = {
            "format": "hero token files 1",
            "tokenizer": copy.name,
            "tokenizer_sha256": hashlib.sha256(copy.read_bytes()).hexdigest(),
            "vocab_size": Tokenizer.from_file(str(copy)).get_vocab_size(),
            "eos_id": eos,
            "splits": {
                half: {"documents": len(lengths), "tokens": sum(lengths), "bytes": sum(lengths)}
                for half, lengths in halves.items()
            },
        }
        prefix.with_name(prefix.name + ".json").write_text(json.dumps(metadata))
    return written[0], written[1]


def windows(documents: list[Document], options: dict[str, Any]) -> list[Sample]:
    """What a validation reads: the stored tokens in order, each but the first a target once."""
    sequence, batches = options["train.sequence"], options["eval.batches"]
    entries = [entry for document in documents for entry in document.entries()]
    every = [tuple(entries[i : i + sequence + 1]) for i in range(0, len(entries) - 1, sequence)]
    return every[: batches * options["train.global_batch"] or None]


def losses(model: hero_moe.LanguageModel, sample: Sample, options: dict[str, Any]) -> list[float]:
    """The losses of the targets of a sample that are trained on."""
    sequence = len(sample) - 1
    starts = [0]
    if options["train.document_mask"]:
        starts += [t for t in range(1, sequence) if sample[t].start]
    out = []
    for begin, end in pairwise([*starts, sequence]):
        logprobs = model.logits([entry.id for entry in sample[begin:end]]).log_softmax(-1)
        for t in range(begin, end):
            if sample[t + 1].trained:
                out.append(-logprobs[t - begin, sample[t + 1].id].item())
    return out


def unmasked(documents: list[Document]) -> list[Document]:
    return [Document(document.ids, (True,) * len(document.ids)) for document in documents]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def plan(case: Case) -> tuple[list[int], list[Phase]]:
    """The sources in the order of their first use, and the phases, which count them in this order."""
    order = list(dict.fromkeys(source for phase in case["phases"] for source in phase["sources"]))
    phases, begin = [], 0
    for phase in case["phases"]:
        weights = zip(map(order.index, phase["sources"]), phase["weights"], strict=True)
        phases.append(Phase((phase["until"] - begin) * case["options"]["train.global_batch"], dict(weights)))
        begin = phase["until"]
    return order, phases


def train(case: Case, folder: Path) -> None:
    """One phase is given as `--data`, several as `data.phase`."""
    options, data = MODEL | case["options"], []
    blends = [
        [f"{weight}:{folder}/{n}" for n, weight in zip(phase["sources"], phase["weights"], strict=True)]
        for phase in case["phases"]
    ]
    if len(blends) == 1:
        data = ["--data", *blends[0]]
    else:
        ends = [{"until_step": phase["until"]} for phase in case["phases"][:-1]] + [{}]
        options["data.phase"] = [end | {"blend": words} for end, words in zip(ends, blends, strict=True)]
    (folder / "run.toml").write_text(toml(options))
    words = ["train", "--config", folder / "run.toml", *data, "--run", folder / "run"]
    expect_ranks_succeed(words, case["ranks"], folder / "log", [*options, "eval.data", ".bin"])


def check(case: Case, folder: Path) -> None:
    options = case["options"]
    eos = Tokenizer.from_file(str(shared_bpe() / "tokenizer.json")).token_to_id(END) if case["eos"] else -1
    assert eos is not None
    halves = [write_source(source, folder / str(n), eos) for n, source in enumerate(case["sources"])]
    if not options["train.loss_mask"]:
        halves = [(unmasked(training), unmasked(valid)) for training, valid in halves]
    train(case, folder)
    order, phases = plan(case)
    reading = Reading(
        [halves[n][0] for n in order], options["train.sequence"], options["train.seed"], eos,
        options["train.pack"] == "best_fit",
    )  # fmt: skip
    samples = reading.samples(phases)
    model = hero_moe.load(checkpoint(folder / "run", options["train.steps"]), device="cpu")
    logged = metrics(folder / "run")
    assert len(logged) == options["train.steps"]

    def expect(found: float, read: list[Sample], what: str) -> None:
        want = mean([loss for sample in read for loss in losses(model, sample, options)])
        assert abs(found - want) <= CLOSE * max(1, want), f"{what}: found {found}, expected {want}"

    for line in logged:
        first = (line["step"] - 1) * options["train.global_batch"]
        read = samples[first : first + options["train.global_batch"]]
        expect(line["loss"], read, f"step {line['step']}")
    held_out = [sample for n in order for sample in windows(halves[n][1], options)]
    expect(logged[-1]["valid_loss"], held_out, "validation")
    shown = json.loads(run_hero("data", "show", folder / "run", "--json").stdout)
    for phase, found in zip(phases, shown["phases"], strict=True):
        choices = quota_method(phase.weights.values(), phase.samples)
        for n, (source, counts) in enumerate(zip(phase.weights, found["sources"], strict=True)):
            assert counts["read"]["samples"] == choices.count(n)
            assert counts["samples_per_epoch"] == len(reading.epoch(source, 0))


test_fixed_cases, test_fresh_cases = property_tests(check, cases())

if __name__ == "__main__":
    reproduce(check)
