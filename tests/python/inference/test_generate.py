"""Generation and evaluation with a saved model, and their reproducibility."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from hero_moe import load
from program import (
    DEEPSEEK,
    assert_exit_2,
    checkpoint,
    folder_bytes,
    hero,
    metrics,
    run_hero,
    training,
    write_megatron,
)

PROMPT = "def index_1(node):\n\treturn "
FAMILIES = {
    "qwen3_moe": {"router.kind": "hero"},
    "deepseek_v3": DEEPSEEK | {"router.kind": "hero"},
}


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A HERO model in fp32, trained for a few steps."""
    folder = tmp_path_factory.mktemp("generate") / request.param
    settings = {"train.dtype": "fp32", "train.steps": 30, "optim.lr": 3e-3}
    run_hero(*training(folder, data, settings | FAMILIES[request.param]))
    return folder


def continued(run: Path, *words: object, prompt: str = PROMPT, tokens: int = 24) -> str:
    text = run_hero("generate", run, "--prompt", prompt, "--max-tokens", tokens, *words).stdout
    assert text.startswith(prompt) and text.endswith("\n")
    return text[len(prompt) : -1]


def test_seed_is_reproducible(run: Path) -> None:
    text = continued(run, "--seed", 1)
    assert text and continued(run, "--seed", 1) == text
    assert continued(run, "--seed", 2) != text


def test_text_is_that_of_the_pieces(corpus: Path, tmp_path: Path) -> None:
    """Of a SentencePiece model that adds a space before the first word of a text."""
    model = tmp_path / "pieces.model"
    SentencePieceTrainer.train(
        input=",".join(map(str, sorted(corpus.glob("*.py")))),
        model_prefix=str(model.with_suffix("")),
        vocab_size=400,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = SentencePieceProcessor(model_file=str(model))
    words = ["--input", corpus, "--tokenizer", model, "--out", tmp_path / "d", "--valid-fraction", 0]
    run_hero("data", "tokenize", *words, "--workers", 1)
    run = tmp_path / "run"
    run_hero(*training(run, tmp_path / "d", {"train.dtype": "fp64", "train.steps": 2}))
    text = continued(run, "--seed", 5, "--temperature", 1, tokens=40)
    ids = load(run, dtype="fp64").generate(pieces.encode(PROMPT), max_tokens=40, seed=5, temperature=1.0)
    expected = b"".join(
        bytes([int(piece[3:5], 16)]) if pieces.is_byte(i) else piece.replace("\u2581", " ").encode()
        for i, piece in ((i, pieces.id_to_piece(i)) for i in ids if i < pieces.vocab_size())
        if not pieces.is_control(i)
    ).decode("utf-8", "replace")
    assert text == expected and text.count(" ") > 3


def test_checkpoint_and_run_folder_agree(run: Path) -> None:
    assert continued(checkpoint(run, 30)) == continued(run)


@pytest.mark.parametrize(
    "words", [["--temperature", 0], ["--seed", 3], ["--seed", 4, "--top-k", 20, "--top-p", 0.9]]
)
def test_cache_does_not_change_the_text(run: Path, words: list[object]) -> None:
    assert continued(run, *words) == continued(run, *words, "--no-cache")


def test_greedy(run: Path) -> None:
    greedy = continued(run, "--temperature", 0)
    assert continued(run, "--top-k", 1, "--seed", 5) == greedy
    assert continued(run, "--top-p", 0, "--seed", 6) == greedy
    assert continued(run, "--temperature", 1e-4, "--seed", 7) == greedy
    assert continued(run, "--temperature", 2, "--seed", 8) != greedy


def test_longer_text_starts_with_the_shorter_one(run: Path) -> None:
    long = continued(run, "--seed", 9, tokens=40)
    assert long.startswith(continued(run, "--seed", 9, tokens=10).rstrip("\N{REPLACEMENT CHARACTER}"))


def test_end_tokens_of_generation_config(run: Path, tmp_path: Path) -> None:
    """An export keeps them; `hero generate` and `hero_moe` end at any of them."""
    folder, exported = tmp_path / "model", tmp_path / "exported"
    run_hero("export", run, folder)
    text = continued(folder, "--seed", 2)
    ids = load(folder).generate([1, 2, 3], max_tokens=24, seed=2)
    config = json.loads((folder / "generation_config.json").read_text())
    ends = [config["eos_token_id"], *range(10, 200)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "top_k": 20}))
    run_hero("export", folder, exported)
    assert json.loads((exported / "generation_config.json").read_text()) == {
        "eos_token_id": ends,
        "top_k": 20,
    }
    for place in (folder, exported):
        shorter = continued(place, "--seed", 2)
        assert text.startswith(shorter.rstrip("\N{REPLACEMENT CHARACTER}")) and len(shorter) < len(text)
        model = load(place)
        assert model.eos_ids == tuple(ends)
        end = next(i for i, token in enumerate(ids) if token in ends)
        assert model.generate([1, 2, 3], max_tokens=24, seed=2) == ids[:end]


def test_end_tokens_of_a_list_in_config_json(run: Path, tmp_path: Path) -> None:
    folder, exported = tmp_path / "model", tmp_path / "exported"
    run_hero("export", run, folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": [7, 3]}
    (folder / "config.json").write_text(json.dumps(config))
    run_hero("export", folder, exported)
    assert json.loads((exported / "generation_config.json").read_text()) == {"eos_token_id": [7, 3]}
    assert load(exported).eos_ids == load(folder).eos_ids == (7, 3)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    run_hero("export", folder, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["eos_token_id"] == [7, 3]
    assert load(tmp_path / "again").eos_ids == (7, 3)


def test_added_tokens_that_the_tokenizer_does_not_have(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    run_hero("export", run, folder)
    words = ["generate", folder, "--prompt", "x", "--max-tokens", 1]
    assert run_hero(*words).stderr == ""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"0": {"content": "<unk>"}, "100000": {"content": "<|im_start|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 100001}))
    warning = (
        "has no <|im_start|> and 1 other added tokens of the folder: such text is encoded as other tokens"
    )
    assert warning in run_hero(*words).stderr


def test_empty_prompt_starts_a_document(run: Path) -> None:
    assert continued(run, "--temperature", 0, prompt="")


@pytest.mark.parametrize("prompt", ["汉字 – Ünïcödé 🙂", "\tindented\r\n\n  text \x01"])
def test_output_starts_with_the_unchanged_prompt(run: Path, prompt: str) -> None:
    continued(run, prompt=prompt, tokens=4)


def test_output_is_always_valid_utf8(run: Path) -> None:
    """At a high temperature most tokens are single bytes of invalid text; `run_hero` decodes strictly."""
    texts = [continued(run, "--temperature", 50, "--seed", seed, tokens=100) for seed in range(3)]
    assert any("\N{REPLACEMENT CHARACTER}" in text for text in texts)


def test_prompt_too_long(run: Path) -> None:
    result = hero("generate", run, "--prompt", "\x01" * 128)
    assert_exit_2(result, "--prompt: 128 tokens", "fewer than model.max_position_embeddings = 128")
    assert result.stdout == ""


def test_stops_at_the_last_position(run: Path) -> None:
    prompt = "\x01" * 125
    assert continued(run, "--seed", 1, prompt=prompt, tokens=100) == continued(
        run, "--seed", 1, prompt=prompt, tokens=3
    )


def test_rejects_invalid_utf8_prompt(run: Path) -> None:
    assert_exit_2(
        hero("generate", run, "--prompt", "ab\udcff"), "--prompt: byte 2: invalid UTF-8", "expected UTF-8"
    )


def valid_tokens(data: Path) -> int:
    return np.fromfile(f"{data}-valid.bin", "<u2").size


def test_evaluation(run: Path, data: Path) -> None:
    shown = run_hero("eval", run, "--data", data, f"{data}-train").stdout
    written = (run / "eval.json").read_bytes()
    result = json.loads(written)
    assert result["step"] == 30
    assert [d["name"] for d in result["datasets"]] == ["corpus-valid", "corpus-train"]
    assert result["datasets"][0]["tokens"] == valid_tokens(data) - 1
    for line, entry in zip(shown.splitlines()[1:], result["datasets"], strict=True):
        assert entry["perplexity"] == pytest.approx(math.exp(entry["loss"]), rel=1e-12)
        assert 2 < entry["loss"] < math.log(512)
        expected = [entry["name"], str(entry["tokens"]), f"{entry['loss']:.4f}", f"{entry['perplexity']:.3f}"]
        assert line.split() == expected
    assert run_hero("eval", run, "--data", data, f"{data}-train").stdout == shown
    assert (run / "eval.json").read_bytes() == written


def test_evaluation_does_not_modify_a_checkpoint(run: Path, data: Path) -> None:
    before = folder_bytes(run)
    shown = run_hero("eval", checkpoint(run, 30), "--data", data).stdout
    assert folder_bytes(run) == before
    assert shown.splitlines()[1] == run_hero("eval", run, "--data", data).stdout.splitlines()[1]


def test_evaluation_of_a_model_folder_with_metrics(run: Path, data: Path, tmp_path: Path) -> None:
    """It has no step, so there is no eval.json to write."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint(run, 30), folder)
    shutil.copy(run / "metrics.jsonl", folder)
    before = folder_bytes(folder)
    shown = run_hero("eval", folder, "--data", data).stdout
    assert folder_bytes(folder) == before
    assert shown.splitlines()[1] == run_hero("eval", run, "--data", data).stdout.splitlines()[1]


def test_evaluation_does_not_depend_on_its_batch(run: Path, data: Path) -> None:
    losses = []
    for batch in (1, 3, 8):
        run_hero("eval", run, "--data", data, "--batch", batch)
        losses.append(json.loads((run / "eval.json").read_text())["datasets"][0]["loss"])
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-6)


def test_training_loss_is_the_evaluation_loss(run: Path, data: Path, tmp_path: Path) -> None:
    """A step with negligible learning rate: its loss over the only sample equals that of `hero eval`."""
    tokens = np.fromfile(f"{data}-train.bin", "<u2")[:65].tolist()
    write_megatron(tmp_path / "one", [tokens])
    still = tmp_path / "still"
    settings = FAMILIES[run.name] | {
        "model.vocab_size": 512,
        "router.bias_update_rate": 0,
        "train.dtype": "fp32",
        "train.steps": 1,
        "train.micro_batch": 1,
        "train.global_batch": 1,
        "optim.lr": 1e-30,
        "optim.min_lr": 0,
        "optim.warmup_steps": 0,
    }
    run_hero(*training(still, tmp_path / "one", settings))
    run_hero("eval", still, "--data", tmp_path / "one")
    found = json.loads((still / "eval.json").read_text())["datasets"][0]
    assert found["tokens"] == 64
    assert found["loss"] == pytest.approx(metrics(still)[0]["lm_loss"], abs=2e-6)


def test_loss_in_bf16_is_close(run: Path, data: Path, tmp_path: Path) -> None:
    """The same weights evaluated in bf16; the relative logit error is about 2^-8."""
    folder = tmp_path / "bf16"
    shutil.copytree(checkpoint(run, 30), folder)
    config = folder / "config.toml"
    config.write_text(re.sub(r'\ndtype = "fp32"\n', '\ndtype = "bf16"\n', config.read_text()))
    (folder / "manifest.json").unlink()
    losses = [
        float(run_hero("eval", model, "--data", data).stdout.splitlines()[1].split()[2])
        for model in (run, folder)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
