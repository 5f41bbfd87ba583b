"""`hero_moe.load`: the same numbers and texts as the program, and one clear line for what cannot be."""

from __future__ import annotations

import json
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
from program import DEEPSEEK, ran, training

FAMILIES = {"qwen3_moe": {"router.kind": "hero"}, "deepseek_v3": DEEPSEEK}
PROMPT = "def index_1(node):\n\treturn "


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """As the program in these tests: equal sums, to the last bit."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in bf16 that has learnt a little."""
    folder = tmp_path_factory.mktemp("load") / request.param
    settings = {"train.dtype": "bf16", "train.steps": 8, "optim.lr": 1e-2, "optim.warmup_steps": 1}
    ran(*training(folder, data, settings | FAMILIES[request.param]))
    return folder


@pytest.fixture(scope="module")
def pieces(data: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(data.with_name("pieces.model")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder of transformers, 96 ids, 128 positions, no end token."""
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
    ran("logits", folder, "--tokens", work / "tokens.json", "--out", out, "--dtype", dtype)
    tensors = load_file(out)
    return torch.stack([tensors[f"logits.{n}"] for n in range(len(ids))])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_logits_are_the_programs(run: Path, tmp_path: Path, dtype: str) -> None:
    model = hero_moe.load(run, dtype=dtype)
    assert model.dtype == dtype
    ids = torch.randint(model.vocab_size, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = program_logits(run, ids, tmp_path, dtype)
    for single, row in zip(ids, expected, strict=True):
        assert torch.equal(model.logits(single).float(), row.float())
    logits = model.logits(ids)
    assert logits.shape == (3, 40, model.vocab_size) and not logits.requires_grad
    assert logits.dtype == (torch.float64 if dtype == "fp64" else torch.float32)
    # Other sizes of products, other orders of sums: some units in the last place of the type.
    part = {"fp32": 2e-6, "bf16": 2e-2, "fp64": 1e-14}[dtype]
    assert (logits - expected).abs().max() <= part * expected.abs().max()


def test_what_a_folder_says(run: Path, pieces: sentencepiece.SentencePieceProcessor) -> None:
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
def test_generate_as_the_program(
    run: Path, pieces: sentencepiece.SentencePieceProcessor, options: dict[str, float]
) -> None:
    model, prompt = hero_moe.load(run), pieces.encode(PROMPT)
    made = model.generate(prompt, max_tokens=24, eos=pieces.eos_id(), **options)
    text = PROMPT + pieces.decode([i for i in made if i < pieces.vocab_size()]) + "\n"
    words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    assert ran("generate", run, "--prompt", PROMPT, "--max-tokens", 24, *words).stdout == text
    assert made == list(model.stream(torch.tensor(prompt), max_tokens=24, eos=[pieces.eos_id()], **options))


def test_generate_greedy_is_the_argmax(model: hero_moe.LanguageModel) -> None:
    ids = [5, 6, 7]
    for made in model.generate(ids[:], max_tokens=20, temperature=0):
        assert made == model.logits(ids)[-1].argmax()
        ids.append(made)
    assert len(ids) == 23


def test_texts_together_are_the_texts_alone(model: hero_moe.LanguageModel) -> None:
    prompts = [[5, 6, 7], [9], list(range(20, 60)), [1] * 120]
    for options in ({"temperature": 0}, {"top_k": 30}):
        together = model.generate(prompts, max_tokens=20, seed=3, **options)
        alone = [model.generate(p, max_tokens=20, seed=3 + n, **options) for n, p in enumerate(prompts)]
        assert together == alone
    assert [len(made) for made in together] == [20, 20, 20, 8]
    end = together[0][6]
    stopped = model.generate(torch.tensor(prompts[0] + [8]).view(2, 2), max_tokens=20, seed=3, eos=end)
    assert len(stopped) == 2 and all(end not in made for made in stopped)


def test_texts_of_one_prompt_go_their_own_ways(model: hero_moe.LanguageModel) -> None:
    """Their prompt is read once; the positions after it are each text's own, beyond the first 64 of the cache too."""
    one, other = list(range(30, 70)), [3, 9]
    prompts = [one, other, one, one, other]
    together = model.generate(prompts, max_tokens=40, temperature=1.5, seed=11)
    alone = [model.generate(p, max_tokens=40, temperature=1.5, seed=11 + n) for n, p in enumerate(prompts)]
    assert together == alone and len({tuple(made) for made in together}) == 5


def test_texts_join_and_leave(model: hero_moe.LanguageModel) -> None:
    """While others go on, which notice nothing of it."""
    prompts = [[5, 6, 7], [8] * 20, [9, 4]]
    alone = [model.generate(prompt, max_tokens=12, temperature=0.9, seed=3) for prompt in prompts]
    texts, made = model.texts(), {0: [], 1: [], 2: []}
    for step in range(20):
        if step in (0, 2, 5):
            number = texts.add(prompts[(0, 2, 5).index(step)], max_tokens=12, temperature=0.9, seed=3)
            assert number == (0, 2, 5).index(step)
        if step == 6:
            texts.drop(1)
            texts.drop(7)  # there is none
        for number, id in texts.step():
            made[number].append(id)
    assert texts.step() == []
    assert made[0] == [*alone[0], None] and made[2] == [*alone[2], None]
    assert made[1] == alone[1][:4]
    for options, message in (({"max_tokens": 0}, "max_tokens: found 0"), ({"ids": []}, "found 0 of them")):
        with pytest.raises(ValueError, match=message):
            texts.add(**{"ids": [1]} | options)


def test_where_a_text_ends(model: hero_moe.LanguageModel, folder: Path, tmp_path: Path) -> None:
    made = model.generate([5, 6, 7], max_tokens=20, seed=3)
    assert len(made) == 20 and model.eos_ids == ()
    first = made.index(made[6])
    assert model.generate([5, 6, 7], max_tokens=20, seed=3, eos=made[6]) == made[:first]
    assert model.generate([5, 6, 7], max_tokens=20, seed=3, eos=[96, made[6]]) == made[:first]
    assert len(model.generate([5] * 120, max_tokens=20)) == 8
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    generation = tmp_path / "generation_config.json"
    generation.unlink(missing_ok=True)
    generation.write_text(json.dumps({"eos_token_id": [95, made[6]]}))
    other = hero_moe.load(tmp_path)
    assert other.eos_ids == (95, made[6])
    assert other.generate([5, 6, 7], max_tokens=20, seed=3, eos=()) == made
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


def test_padding_changes_nothing_before_it(model: hero_moe.LanguageModel) -> None:
    ids = random_ids(configuration("qwen3"), (2, 50))
    whole = model.logits(ids)
    ids[:, 30:] = 0
    torch.testing.assert_close(model.logits(ids)[:, :30], whole[:, :30], rtol=0, atol=2e-5)


MISTAKES: dict[str, tuple[Callable[[hero_moe.LanguageModel], Any], str]] = {
    "id too large": (lambda m: m.logits([[1, 96]]), "ids: found 96, expected 0 to 95"),
    "id negative": (lambda m: m.token_logprobs([1, -1]), "ids: found -1, expected 0 to 95"),
    "prompt's id": (lambda m: m.generate([96]), "ids: found 96, expected 0 to 95"),
    "no integers": (lambda m: m.logits([0.5]), "ids: found torch.float32, expected integers"),
    "no numbers": (lambda m: m.logits("abc"), "ids: expected integers"),
    "uneven": (lambda m: m.logits([[1], [1, 2]]), "ids: expected integers in lists of one length"),
    "none": (lambda m: m.logits([]), "found 0 of them"),
    "empty prompt": (lambda m: m.generate([]), "ids: found 0 of them in a sequence, expected 1 to 127"),
    "three dimensions": (lambda m: m.token_logprobs([[[1]]]), "ids: found the shape [1, 1, 1]"),
    "prompts": (lambda m: m.generate([[[1]]]), "ids: found the shape [1, 1], expected one sequence [S]"),
    "one of the prompts": (lambda m: m.generate([[1], [96]]), "ids: found 96, expected 0 to 95"),
    "last seed": (lambda m: m.generate([[1], [2]], seed=2**63 - 1), "seed: found 9223372036854775808"),
    "too long": (lambda m: m.logits([1] * 129), "ids: found 129 of them in a sequence, expected 1 to 128"),
    "prompt too long": (lambda m: m.generate([1] * 128), "expected 1 to 127: max_position_embeddings"),
    "max_tokens": (lambda m: m.generate([1], max_tokens=0), "max_tokens: found 0, expected at least 1"),
    "half a token": (lambda m: m.generate([1], max_tokens=1.5), "max_tokens: found 1.5"),
    "temperature": (lambda m: m.generate([1], temperature=-1), "temperature: found -1, expected 0 or more"),
    "no temperature": (lambda m: m.generate([1], temperature=torch.nan), "temperature: found nan"),
    "top_k": (lambda m: m.generate([1], top_k=-1), "top_k: found -1"),
    "top_p": (lambda m: m.generate([1], top_p=1.5), "top_p: found 1.5, expected 0 to 1"),
    "seed": (lambda m: m.generate([1], seed=-1), "seed: found -1, expected an integer from 0"),
    "eos": (lambda m: m.generate([1], eos=["</s>"]), "eos: found '</s>', expected an integer"),
    "row": (lambda m: m.score(*map(torch.tensor, ([[1, 2]], [2], [0]))), "rows: found 2, expected 0 to 1"),
    "target": (lambda m: m.score(*map(torch.tensor, ([[1]], [0], [-1]))), "targets: found -1"),
    "dtype": (lambda m: hero_moe.load(m.folder, dtype="int8"), "dtype: found int8, expected fp32"),
    "device": (lambda m: hero_moe.load(m.folder, device="tpu"), "device: found tpu, expected one of auto"),
    "no floats": (lambda m: hero_moe.load(m.folder, dtype=torch.int8), "dtype: found torch.int8"),
    "nothing": (lambda m: hero_moe.load(m.folder / "x"), "/x: found nothing, expected a run folder"),
    "a file": (lambda m: hero_moe.load(m.folder / "config.json"), "config.json"),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(model: hero_moe.LanguageModel, mistake: Callable[..., Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mistake(model)
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
def test_bad_folders(folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        hero_moe.load(tmp_path)
    assert message in str(error.value) and str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
