"""`hero_moe.load`: the same results and texts as the program, and one-line errors for invalid input."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file
from torch import Tensor

import hero_moe
from hf_models import class_of, configuration, random_ids, random_model
from program import DEEPSEEK, checkpoint, run_hero, training

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = {"qwen3_moe": {"router.kind": "hero"}, "deepseek_v3": DEEPSEEK}
PROMPT = "def index_1(node):\n\treturn "


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in bf16, trained for a few steps."""
    folder = tmp_path_factory.mktemp("load") / request.param
    settings = {"train.dtype": "bf16", "train.steps": 8, "optim.lr": 1e-2, "optim.warmup_steps": 1}
    run_hero(*training(folder, data, settings | FAMILIES[request.param]))
    return folder


@pytest.fixture(scope="module")
def pieces(data: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(data.with_name("pieces.model")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small transformers model folder: 96 ids, 128 positions, no EOS token."""
    path, config = tmp_path_factory.mktemp("folder"), configuration("qwen3")
    random_model(class_of(config), config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> hero_moe.LanguageModel:
    return hero_moe.load(folder)


def program_logits(folder: Path, ids: Tensor, work: Path, dtype: str) -> Tensor:
    """[B, S, V], as `hero logits` writes them."""
    (work / "tokens.json").write_text(json.dumps(ids.tolist()))
    out = work / "out.safetensors"
    run_hero("logits", folder, "--tokens", work / "tokens.json", "--out", out, "--dtype", dtype)
    tensors = load_file(out)
    return torch.stack([tensors[f"logits.{n}"] for n in range(len(ids))])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_logits_match_the_program(run: Path, tmp_path: Path, dtype: str) -> None:
    model = hero_moe.load(run, dtype=dtype)
    assert model.dtype == dtype
    ids = torch.randint(model.vocab_size, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = program_logits(run, ids, tmp_path, dtype)
    for single, row in zip(ids, expected, strict=True):
        assert torch.equal(model.logits(single).float(), row.float())
    logits = model.logits(ids)
    assert logits.shape == (3, 40, model.vocab_size) and not logits.requires_grad
    assert logits.dtype == (torch.float64 if dtype == "fp64" else torch.float32)
    # The number of rows selects the kernel, and so the order of sums; the model amplifies rounding errors: each order is
    # up to 8e-6 away from fp64.
    part = {"fp32": 1e-5, "bf16": 2e-2, "fp64": 1e-14}[dtype]
    assert (logits - expected).abs().max() <= part * expected.abs().max()


def test_attributes_match_the_folder(run: Path, pieces: sentencepiece.SentencePieceProcessor) -> None:
    model = hero_moe.load(run)
    assert model.folder == run / "checkpoints" / "step-00000008"
    assert model.dtype == "bf16" and model.max_positions == 128
    assert model.config == json.loads((model.folder / "config.json").read_text())
    assert model.config["model_type"].endswith(run.name) and model.config["vocab_size"] == model.vocab_size
    again = hero_moe.load(str(model.folder), dtype=torch.bfloat16)
    assert torch.equal(again.logits([1, 2, 3]), model.logits(torch.tensor([1, 2, 3])))


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"seed": 7}, {"seed": 8, "temperature": 1.5, "top_k": 20, "top_p": 0.9}],
    ids=["greedy", "seed", "top-k-top-p"],
)
def test_generate_matches_the_program(
    run: Path, pieces: sentencepiece.SentencePieceProcessor, options: dict[str, float]
) -> None:
    model, prompt = hero_moe.load(run), pieces.encode(PROMPT)
    generated = model.generate(prompt, max_tokens=24, eos=pieces.eos_id(), **options)
    text = PROMPT + pieces.decode([i for i in generated if i < pieces.vocab_size()]) + "\n"
    words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    assert run_hero("generate", run, "--prompt", PROMPT, "--max-tokens", 24, *words).stdout == text
    assert generated == list(
        model.stream(torch.tensor(prompt), max_tokens=24, eos=[pieces.eos_id()], **options)
    )


def test_generate_greedy_is_the_argmax(model: hero_moe.LanguageModel) -> None:
    ids = [5, 6, 7]
    for next_id in model.generate(ids[:], max_tokens=20, temperature=0):
        assert next_id == model.logits(ids)[-1].argmax()
        ids.append(next_id)
    assert len(ids) == 23


def test_batched_sequences_match_single_sequences(model: hero_moe.LanguageModel) -> None:
    prompts = [[5, 6, 7], [9], list(range(20, 60)), [1] * 120]
    for options in ({"temperature": 0}, {"top_k": 30}):
        batched = model.generate(prompts, max_tokens=20, seed=3, **options)
        alone = [model.generate(p, max_tokens=20, seed=3 + n, **options) for n, p in enumerate(prompts)]
        assert batched == alone
    assert [len(ids) for ids in batched] == [20, 20, 20, 8]
    end = batched[0][6]
    stopped = model.generate(torch.tensor(prompts[0] + [8]).view(2, 2), max_tokens=20, seed=3, eos=end)
    assert len(stopped) == 2 and all(end not in ids for ids in stopped)


def test_sequences_with_a_shared_prompt_diverge(model: hero_moe.LanguageModel) -> None:
    """The prompt is processed once; later positions belong to each sequence, also beyond the first 64 of the
    cache."""
    one, other = list(range(30, 70)), [3, 9]
    prompts = [one, other, one, one, other]
    batched = model.generate(prompts, max_tokens=40, temperature=1.5, seed=11)
    alone = [model.generate(p, max_tokens=40, temperature=1.5, seed=11 + n) for n, p in enumerate(prompts)]
    assert batched == alone and len({tuple(ids) for ids in batched}) == 5


def test_run_returns_what_its_steps_return(model: hero_moe.LanguageModel) -> None:
    """One step in 0 seconds; otherwise until all sequences have ended."""
    stepped, ran = model.texts(), model.texts()
    for batch in (stepped, ran):
        batch.add([5, 6, 7], max_tokens=5, seed=1)
        batch.add([8] * 20, max_tokens=8, seed=2)
    steps = list(iter(stepped.step, []))
    assert len(steps) == 9 and ran.run(0) == steps[0]
    assert ran.run(seconds=1e9) == [new for step in steps[1:] for new in step]
    assert ran.run(1) == []


def test_sequences_join_and_leave_a_batch(model: hero_moe.LanguageModel) -> None:
    """Other active sequences are not affected."""
    prompts = [[5, 6, 7], [8] * 20, [9, 4]]
    alone = [model.generate(prompt, max_tokens=12, temperature=0.9, seed=3) for prompt in prompts]
    batch, generated = model.texts(), {0: [], 1: [], 2: []}
    for step in range(20):
        if step in (0, 2, 5):
            number = batch.add(prompts[(0, 2, 5).index(step)], max_tokens=12, temperature=0.9, seed=3)
            assert number == (0, 2, 5).index(step)
        if step == 6:
            batch.drop(1)
            batch.drop(7)  # does not exist
        for number, id in batch.step():
            generated[number].append(id)
    assert batch.step() == []
    assert generated[0] == [*alone[0], None] and generated[2] == [*alone[2], None]
    assert generated[1] == alone[1][:4]
    for options, message in (
        ({"max_tokens": 0}, "max_tokens: found 0"),
        ({"ids": []}, "found a sequence of 0"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.add(**{"ids": [1]} | options)


def test_end_of_a_sequence(model: hero_moe.LanguageModel, folder: Path, tmp_path: Path) -> None:
    generated = model.generate([5, 6, 7], max_tokens=20, seed=3)
    assert len(generated) == 20 and model.eos_ids == ()
    first = generated.index(generated[6])
    assert model.generate([5, 6, 7], max_tokens=20, seed=3, eos=generated[6]) == generated[:first]
    assert model.generate([5, 6, 7], max_tokens=20, seed=3, eos=[96, generated[6]]) == generated[:first]
    assert len(model.generate([5] * 120, max_tokens=20)) == 8
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    generation = tmp_path / "generation_config.json"
    generation.unlink(missing_ok=True)
    generation.write_text(json.dumps({"eos_token_id": [95, generated[6]]}))
    other = hero_moe.load(tmp_path)
    assert other.eos_ids == (95, generated[6])
    assert other.generate([5, 6, 7], max_tokens=20, seed=3, eos=()) == generated
    assert len(other.generate([5, 6, 7], max_tokens=20, seed=3)) <= first


def test_token_logprobs(model: hero_moe.LanguageModel) -> None:
    ids = random_ids(configuration("qwen3"), (3, 50))
    ids[0, 1:] = model.logits(ids[0])[:-1].argmax(-1)
    logits = model.logits(ids)[:, :-1]
    logprobs, greedy = model.token_logprobs(ids)
    expected = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=5e-6)
    assert torch.equal(greedy, logits.argmax(-1) == ids[:, 1:])
    assert 0 < greedy.sum() < greedy.numel()
    single, greedy_single = model.token_logprobs(ids[1].tolist())
    assert single.shape == greedy_single.shape == (49,)
    torch.testing.assert_close(single, logprobs[1], rtol=0, atol=5e-6)
    assert [t.shape for t in model.token_logprobs([[1], [2]])] == [(2, 0), (2, 0)]


def test_padding_does_not_affect_earlier_positions(model: hero_moe.LanguageModel) -> None:
    ids = random_ids(configuration("qwen3"), (2, 50))
    whole = model.logits(ids)
    ids[:, 30:] = 0
    torch.testing.assert_close(model.logits(ids)[:, :30], whole[:, :30], rtol=0, atol=2e-5)


INVALID_CALLS: dict[str, tuple[Callable[[hero_moe.LanguageModel], Any], str]] = {
    "id too large": (lambda m: m.logits([[1, 96]]), "ids: found 96, expected 0 to 95"),
    "id negative": (lambda m: m.token_logprobs([1, -1]), "ids: found -1, expected 0 to 95"),
    "prompt's id": (lambda m: m.generate([96]), "ids: found 96, expected 0 to 95"),
    "no integers": (lambda m: m.logits([0.5]), "ids: found torch.float32, expected integers"),
    "no numbers": (lambda m: m.logits("abc"), "ids: expected integers"),
    "uneven": (lambda m: m.logits([[1], [1, 2]]), "ids: expected integers in lists of equal length"),
    "none": (lambda m: m.logits([]), "found a sequence of 0"),
    "empty prompt": (lambda m: m.generate([]), "ids: found a sequence of 0, expected 1 to 127"),
    "three dimensions": (lambda m: m.token_logprobs([[[1]]]), "ids: found the shape [1, 1, 1]"),
    "prompts": (lambda m: m.generate([[[1]]]), "ids: found the shape [1, 1], expected one sequence [S]"),
    "one of the prompts": (lambda m: m.generate([[1], [96]]), "ids: found 96, expected 0 to 95"),
    "too long": (lambda m: m.logits([1] * 129), "ids: found a sequence of 129, expected 1 to 128"),
    "prompt too long": (lambda m: m.generate([1] * 128), "expected 1 to 127 (max_position_embeddings"),
    "max_tokens": (lambda m: m.generate([1], max_tokens=0), "max_tokens: found 0, expected at least 1"),
    "half a token": (lambda m: m.generate([1], max_tokens=1.5), "max_tokens: found 1.5"),
    "temperature": (lambda m: m.generate([1], temperature=-1), "temperature: found -1, expected 0 or more"),
    "no temperature": (lambda m: m.generate([1], temperature=torch.nan), "temperature: found nan"),
    "top_k": (lambda m: m.generate([1], top_k=-1), "top_k: found -1"),
    "top_p": (lambda m: m.generate([1], top_p=1.5), "top_p: found 1.5, expected 0 to 1"),
    "seed": (
        lambda m: m.generate([1], seed=2**64),
        "seed: found 18446744073709551616, expected a 64-bit integer",
    ),
    "eos": (lambda m: m.generate([1], eos=["</s>"]), "eos: found '</s>', expected an integer"),
    "row": (lambda m: m.score(*map(torch.tensor, ([[1, 2]], [2], [0]))), "rows: found 2, expected 0 to 1"),
    "target": (lambda m: m.score(*map(torch.tensor, ([[1]], [0], [-1]))), "targets: found -1"),
    "dtype": (lambda m: hero_moe.load(m.folder, dtype="int8"), "dtype: found int8, expected fp32"),
    "device": (lambda m: hero_moe.load(m.folder, device="tpu"), "device: found tpu, expected one of auto"),
    "no floats": (lambda m: hero_moe.load(m.folder, dtype=torch.int8), "dtype: found torch.int8"),
    "nothing": (lambda m: hero_moe.load(m.folder / "x"), "/x: no such folder, expected a run folder"),
    "a file": (lambda m: hero_moe.load(m.folder / "config.json"), "config.json"),
}


@pytest.mark.parametrize(("call", "message"), INVALID_CALLS.values(), ids=INVALID_CALLS)
def test_rejects_invalid_calls(model: hero_moe.LanguageModel, call: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(model)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": "8"}, "num_experts"),
        ({"hidden_size": 64}, "has the shape [96, 32], expected [96, 64]"),
        ({"model_type": "llama"}, "model_type"),
        ({"eos_token_id": "</s>"}, 'eos_token_id: found "</s>", expected an integer'),
    ],
)
def test_rejects_invalid_folders(folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        hero_moe.load(tmp_path)
    assert message in str(error.value) and str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_checkpoint_that_does_not_match_its_manifest(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(run, 8), folder)
    weights, optimizer, manifest = (
        folder / name for name in ("model.safetensors", "optimizer.safetensors", "manifest.json")
    )
    os.truncate(optimizer, 1000)
    with pytest.raises(ValueError, match=f"{optimizer}: truncated: found 1000 bytes, expected "):
        hero_moe.load(folder)
    optimizer.unlink()
    hero_moe.load(folder)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{weights}: altered: found sha256 "):
        hero_moe.load(folder)
    os.truncate(weights, len(content) - 1)
    truncated = f"{weights}: truncated: found {len(content) - 1} bytes, expected {len(content)}"
    with pytest.raises(ValueError, match=truncated):
        hero_moe.load(folder)
    os.truncate(manifest, 100)
    with pytest.raises(ValueError, match=f"{manifest}: altered or truncated: found 100 bytes"):
        hero_moe.load(folder)
    manifest.unlink()
    weights.write_bytes(content)
    hero_moe.load(folder)
