"""Corrupt model folders: exit status 2, one line with the file and the key or tensor, nothing written; and a
ValueError of `hero_moe.load` with the same line."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hero_moe
from program import DEEPSEEK, SMALL, assert_exit_2, folder_bytes, hero, run_hero, toml, training

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
NORM, EXPERT = "model.norm.weight", "model.layers.1.mlp.experts.7.down_proj.weight"
SHARD = "model-00001-of-00010.safetensors"
E0 = "model.layers.0.mlp.experts.0"
BEGIN = {"train.steps": 1, "optim.warmup_steps": 0, "train.dtype": "fp32"}
Corruption = Callable[[Path], None]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def intact(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exported folders (tests modify only copies): three HERO layers, the same in shards, a baseline with expert
    groups, and three RMoE layers."""
    work = tmp_path_factory.mktemp("intact")
    run_hero(*training(work / "a", data, BEGIN | {"router.kind": "hero"}))
    run_hero(
        *training(work / "b", data, BEGIN | DEEPSEEK | {"model.n_group": 2, "router.bias_update_rate": 0.0})
    )
    run_hero(*training(work / "c", data, BEGIN | {"router.kind": "rmoe", "router.state_size": 4}))
    run_hero("export", work / "a", work / "qwen3")
    run_hero("export", work / "a", work / "shards", "--max-shard-size", "100KB")
    run_hero("export", work / "b", work / "deepseek")
    run_hero("export", work / "c", work / "rmoe")
    assert len(list((work / "shards").glob("*.safetensors"))) == 10
    return {name: work / name for name in ("qwen3", "shards", "deepseek", "rmoe")}


def edit_json(file: str, change: Callable[[Json], Any]) -> Corruption:
    def corrupt(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return corrupt


def config(**keys: Any) -> Corruption:
    return edit_json(CONFIG, lambda c: c.update(keys))


def without(key: str) -> Corruption:
    return edit_json(CONFIG, lambda c: c.pop(key))


def router(**keys: Any) -> Corruption:
    return edit_json(CONFIG, lambda c: c["hero_router"].update(keys))


def rmoe_router(**keys: Any) -> Corruption:
    return edit_json(CONFIG, lambda c: c["rmoe_router"].update(keys))


def mapped(tensor: str, file: Any) -> Corruption:
    return edit_json(INDEX, lambda i: i["weight_map"].update({tensor: file}))


def header(change: Callable[[Json], Any]) -> Corruption:
    """Changes the safetensors header and keeps the data after it."""

    def corrupt(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        entries = json.loads(content[8:end])
        change(entries)
        text = json.dumps(entries).encode()
        (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + content[end:])

    return corrupt


def entry(tensor: str, **fields: Any) -> Corruption:
    return header(lambda h: h[tensor].update(fields))


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Corruption:
    """Writes a valid file with different tensors."""

    def corrupt(folder: Path) -> None:
        content = load_file(folder / WEIGHTS)
        change(content)
        save_file(content, folder / WEIGHTS)

    return corrupt


def reshaped(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Corruption:
    return tensors(lambda t: t.update({name: np.ascontiguousarray(change(t[name]))}))


def write(file: str, content: bytes) -> Corruption:
    return lambda folder: (folder / file).write_bytes(content) and None


def cut(file: str, *, to: int) -> Corruption:
    """Truncates a file; a negative size counts from the end."""
    return lambda folder: os.truncate(folder / file, to if to >= 0 else (folder / file).stat().st_size + to)


def overwrite(at: int, content: bytes) -> Corruption:
    def corrupt(folder: Path) -> None:
        with (folder / WEIGHTS).open("r+b") as file:
            file.seek(at)
            file.write(content)

    return corrupt


def moved(place: str) -> Corruption:
    """Moves the first shard; the index contains its actual path."""

    def corrupt(folder: Path) -> None:
        name = place.format(folder=folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / SHARD).rename(folder / name)
        index = (folder / INDEX).read_text()
        (folder / INDEX).write_text(index.replace(f'"{SHARD}"', f'"{name}"'))

    return corrupt


def replaced(file: str, make: Callable[[Path], None]) -> Corruption:
    def corrupt(folder: Path) -> None:
        (folder / file).unlink()
        make(folder / file)

    return corrupt


def gate(layer: int) -> str:
    return f"model.layers.{layer}.mlp.gate.weight"


SAME_FOLDER = "expected the name of a file in the folder of the index"
# Name: (folder, corruption, the file at the start of the line or "" for the folder, parts of the line).
DAMAGES: dict[str, tuple[str, Corruption, str, list[str]]] = {
    # files of weights
    "cut": ("qwen3", cut(WEIGHTS, to=-1), WEIGHTS, ["truncated: found", "bytes after the header, expected"]),
    "cut-header": ("qwen3", cut(WEIGHTS, to=100), WEIGHTS, ["byte 0: found header length", "at most 92"]),
    "cut-length": ("qwen3", cut(WEIGHTS, to=5), WEIGHTS, ["found 5 bytes, expected a header length of 8"]),
    "empty-weights": ("qwen3", cut(WEIGHTS, to=0), WEIGHTS, ["found 0 bytes"]),
    "huge-header": ("qwen3", overwrite(0, b"\xff" * 7 + b"\x7f"), WEIGHTS,
                    ["header length 9223372036854775807"]),
    "torn-header": ("qwen3", overwrite(9, b"\0"), WEIGHTS, ["byte 9: found invalid JSON"]),
    "overlap": ("qwen3", header(lambda h: h[f"{E0}.up_proj.weight"].update(h[f"{E0}.gate_proj.weight"])),
                WEIGHTS, [f'entry "{E0}.', "found data at offset", "(no gaps, no overlaps)"]),
    "bytes-left": ("qwen3", lambda f: cut(WEIGHTS, to=(f / WEIGHTS).stat().st_size + 4)(f), WEIGHTS,
                   ["bytes after the header, expected"]),
    "other-size": ("qwen3", entry(NORM, shape=[65]), WEIGHTS,
                   [f'entry "{NORM}": found 256 bytes, expected 260 for F32 [65]']),
    "unknown-type": ("qwen3", entry(NORM, dtype="F31"), WEIGHTS, [f'entry "{NORM}": found dtype "F31"']),
    "no-weights": ("qwen3", lambda f: (f / WEIGHTS).unlink(), "",
                   ["found neither config.json with model.safetensors"]),
    "weights-are-a-folder": ("qwen3", replaced(WEIGHTS, Path.mkdir), WEIGHTS, ["not a regular file"]),
    # tensors
    "integers": ("qwen3", entry(NORM, dtype="I32"), "",
                 [f"tensor {NORM} is I32, expected F32, BF16, F16 or F64"]),
    "long-integers": ("qwen3", reshaped(NORM, lambda t: t.astype("<i8")), "", [f"tensor {NORM} is I64"]),
    "missing": ("qwen3", tensors(lambda t: t.pop(EXPERT)), "",
                [f"no tensor {EXPERT}, expected one of shape [64, 32]"]),
    "surplus": ("qwen3", tensors(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": t[NORM]})), "",
                ["unexpected tensor model.layers.0.self_attn.q_proj.bias"]),
    "extra-layer": ("qwen3", tensors(lambda t: t.update({"model.layers.3.input_layernorm.weight": t[NORM]})),
                    "", ["unexpected tensor model.layers.3.input_layernorm.weight"]),
    "name-of-two-lines": ("qwen3", tensors(lambda t: t.update({"a\nhero: b": t[NORM]})), "",
                          ["unexpected tensor a hero: b"]),
    "long-name": ("qwen3", tensors(lambda t: t.update({"x" * 5000: t[NORM]})), "",
                  ["x" * 197 + "...: weights of another model"]),
    "transposed": ("qwen3", reshaped("lm_head.weight", np.transpose), "",
                   ["tensor lm_head.weight has the shape [64, 512], expected [512, 64]"]),
    "one-value": ("qwen3", reshaped(NORM, lambda t: t[:1]), "",
                  [f"tensor {NORM} has the shape [1], expected [64]"]),
    "no-history": ("qwen3", reshaped(gate(2), lambda t: t[:, :64]), "",
                   [f"tensor {gate(2)} has the shape [8, 64], expected [8, 80]"]),
    "short-history": ("qwen3", reshaped(gate(2), lambda t: t[:, :72]), "",
                      ["shape [8, 72], expected [8, 80]"]),
    "history-in-a-baseline": ("qwen3", without("hero_router"), "",
                              [f"tensor {gate(1)} has the shape [8, 72], expected [8, 64]"]),
    "another-window": ("qwen3", router(window=1), "",
                       [f"tensor {gate(2)} has the shape [8, 80], expected [8, 72]"]),
    # the index
    "index-parent": ("shards", moved("../x.safetensors"), INDEX, ['found "../x.safetensors"', SAME_FOLDER]),
    "index-absolute": ("shards", moved("{folder}/x.safetensors"), INDEX, ['found "/', SAME_FOLDER]),
    "index-subfolder": ("shards", moved("sub/x.safetensors"), INDEX, ['found "sub/x.safetensors"', SAME_FOLDER]),
    "index-dots": ("shards", mapped(NORM, ".."), INDEX, [f'weight_map "{NORM}": found ".."', SAME_FOLDER]),
    "index-nothing": ("shards", mapped(NORM, ""), INDEX, [f'weight_map "{NORM}": found ""', SAME_FOLDER]),
    "index-number": ("shards", mapped(NORM, 7), INDEX, [f'weight_map "{NORM}": found 7', SAME_FOLDER]),
    "index-missing-file": ("shards", mapped(NORM, "none.safetensors"), "none.safetensors", ["No such file"]),
    "index-other-shard": ("shards", mapped("extra.weight", SHARD), SHARD,
                          ['entry "extra.weight" is missing, expected by model.safetensors.index.json']),
    "index-names-config": ("shards", mapped(NORM, CONFIG), CONFIG, ["byte 0: found header length"]),
    "index-without-map": ("shards", edit_json(INDEX, lambda i: i.pop("weight_map")), INDEX, ["weight_map"]),
    "index-map-is-a-list": ("shards", edit_json(INDEX, lambda i: i.update(weight_map=[])), INDEX,
                            ["weight_map"]),
    "index-of-nothing": ("shards", edit_json(INDEX, lambda i: i.update(weight_map={})), "",
                         ["no tensor model.embed_tokens.weight"]),
    "index-torn": ("shards", cut(INDEX, to=1000), INDEX, ["found invalid JSON"]),
    "index-empty": ("shards", cut(INDEX, to=0), INDEX, ["is empty"]),
    "index-twice": ("shards", write(INDEX, b'{"weight_map": {"a": "b", "a": "c"}}'), INDEX,
                    ['"a" is a duplicate key']),
    "shard-cut": ("shards", cut(SHARD, to=-1), SHARD, ["truncated: found"]),
    "shard-gone": ("shards", lambda f: (f / SHARD).unlink(), SHARD, ["No such file"]),
    "index-is-a-pipe": ("shards", replaced(INDEX, os.mkfifo), "", ["found neither config.json with"]),
    # config.json
    "no-config": ("qwen3", lambda f: (f / CONFIG).unlink(), "", ["found neither config.json with"]),
    "config-is-a-pipe": ("qwen3", replaced(CONFIG, os.mkfifo), "", ["found neither config.json with"]),
    "config-empty": ("qwen3", cut(CONFIG, to=0), CONFIG, ["byte 0: found invalid JSON"]),
    "config-torn": ("qwen3", cut(CONFIG, to=300), CONFIG, ["byte 300: found invalid JSON"]),
    "config-latin-1": ("qwen3", write(CONFIG, b'{"model_type": "\xe9"}'), CONFIG, ["found invalid JSON"]),
    "config-a-list": ("qwen3", write(CONFIG, b"[]"), CONFIG, ["found [], expected a model configuration"]),
    "config-nested": ("qwen3", write(CONFIG, b"[" * 10**6), CONFIG, ["nested deeper than 100 levels"]),
    "missing-key": ("qwen3", without("hidden_size"), CONFIG,
                    ["hidden_size: found nothing, expected an integer"]),
    "missing-groups": ("deepseek", without("n_group"), CONFIG, ["n_group: found nothing, expected an integer"]),
    "missing-rank": ("deepseek", without("q_lora_rank"), CONFIG,
                     ["q_lora_rank: found nothing, expected an integer"]),
    "text-for-a-number": ("qwen3", config(hidden_size="64"), CONFIG,
                          ['hidden_size: found "64", expected an integer']),
    "unknown-key": ("qwen3", config(logit_cap=30), CONFIG, ["logit_cap: found 30, expected no such key"]),
    "another-family": ("qwen3", config(model_type="llama"), CONFIG, ['model_type: found "llama"']),
    "end-token": ("qwen3", config(eos_token_id="</s>"), CONFIG, ['eos_token_id: found "</s>"']),
    "too-many-experts": ("qwen3", config(num_experts_per_tok=9), CONFIG,
                         ["num_experts_per_tok: found 9", "num_experts = 8"]),
    "groups": ("deepseek", config(n_group=3), CONFIG, ["num_experts: found 8", "n_group = 3"]),
    "activation": ("qwen3", config(hidden_act="gelu"), CONFIG, ['hidden_act: found "gelu", expected "silu"']),
    "bias": ("qwen3", config(attention_bias=True), CONFIG, ["attention_bias: found true, expected false"]),
    "sliding-window": ("qwen3", config(use_sliding_window=True), CONFIG, ["use_sliding_window: found true"]),
    "rope": ("qwen3", config(rope_scaling={"rope_type": "llama3"}), CONFIG,
             ['rope_scaling: rope_type: found "llama3"']),
    "quantized": ("qwen3", config(quantization_config={"bits": 4}), CONFIG,
                  ['quantization_config: found {"bits":4}']),
    "odd-head": ("qwen3", config(head_dim=15), CONFIG, ["head_dim: found 15, expected an even number"]),
    "odd-rotary-part": ("deepseek", config(qk_rope_head_dim=7), CONFIG, ["qk_rope_head_dim: found 7"]),
    "router-key": ("qwen3", router(tau=0.5), CONFIG, ["hero_router: tau: found 0.5, expected no such key"]),
    "router-stages": ("qwen3", router(stages=[0, 0]), CONFIG,
                      ["hero_router: stages: found [0,0]", "3 MoE layers"]),
    "router-order": ("qwen3", router(stages=[1, 1, 0]), CONFIG, ["hero_router: stages: found [1,1,0]"]),
    "router-window": ("qwen3", router(window=-1), CONFIG, ["hero_router: window: found -1"]),
    "router-history": ("qwen3", router(history="both"), CONFIG, ['hero_router: history: found "both"']),
    "rmoe-key": ("rmoe", rmoe_router(window=1), CONFIG, ["rmoe_router: window: found 1, expected no such key"]),
    "rmoe-size": ("rmoe", rmoe_router(state_size=0), CONFIG, ["rmoe_router: state_size: found 0"]),
    "rmoe-stages": ("rmoe", rmoe_router(stages=[0, 0]), CONFIG,
                    ["rmoe_router: stages: found [0,0]", "3 MoE layers"]),
}  # fmt: skip


def corrupted(intact: dict[str, Path], name: str, place: Path) -> Path:
    folder, corrupt, *_ = DAMAGES[name]
    shutil.copytree(intact[folder], place)
    corrupt(place)
    return place


def line_of(folder: Path) -> str:
    """The one-line error of `hero_moe.load`."""
    with pytest.raises(ValueError) as caught:
        hero_moe.load(folder)
    assert type(caught.value) is ValueError
    return str(caught.value)


@pytest.mark.parametrize("name", DAMAGES)
def test_load(intact: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = corrupted(intact, name, tmp_path / "folder")
    line, (_, _, file, parts) = line_of(folder), DAMAGES[name]
    assert line.startswith(f"{folder / file if file else folder}"), line
    assert "\n" not in line and len(line) < len(str(folder)) + 400
    for part in parts:
        assert part in line, line


def command(word: str, folder: Path, intact: Path, data: Path, out: Path) -> list[Any]:
    tokens = out.with_name("tokens.json")
    tokens.write_text("[[1, 2, 3]]")
    settings = out.with_name("settings.toml")
    settings.write_text(toml({k: v for k, v in (SMALL | BEGIN).items() if not k.startswith("model.")}))
    return {
        "logits": ["logits", folder, "--tokens", tokens, "--out", out],
        "eval": ["eval", folder, "--data", data],
        "generate": ["generate", folder, "--prompt", "a"],
        "export": ["export", folder, out],
        "diff": ["diff", folder, intact, "--tokens", tokens],
        "diff-second": ["diff", intact, folder, "--tokens", tokens],
        "train": ["train", "--config", settings, "--data", data, "--run", out, "--init-from", folder],
    }[word]


COMMANDS = ["logits", "eval", "generate", "export", "diff", "diff-second", "train"]
# Cases for every command: corrupt weights, tensors, index and configuration.
EVERY = ["cut", "surplus", "index-parent", "unknown-key"]
# `hero train --init-from` has its own checks.
ONLY_TRAIN = ["missing", "integers", "no-history", "history-in-a-baseline", "router-stages", "no-weights"]


@pytest.mark.parametrize(
    ("word", "name"), [(w, n) for w in COMMANDS for n in EVERY] + [("train", n) for n in ONLY_TRAIN]
)
def test_commands(intact: dict[str, Path], data: Path, tmp_path: Path, word: str, name: str) -> None:
    folder = corrupted(intact, name, tmp_path / "folder")
    words = command(word, folder, intact["qwen3"], data, tmp_path / "out")
    before = folder_bytes(tmp_path)
    result = hero(*words)
    assert_exit_2(result)
    assert result.stderr == f"hero: {line_of(folder)}\n"
    assert folder_bytes(tmp_path) == before and not list(tmp_path.glob("out*"))


def test_intact_folders(intact: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """Intact folders load; so does a folder of symbolic links, as in the Hugging Face cache."""
    ids = [1, 2, 3]
    logits = hero_moe.load(intact["qwen3"]).logits(ids)
    hero_moe.load(intact["deepseek"])
    for source in ("qwen3", "shards"):
        blobs, links = tmp_path / f"{source}-blobs", tmp_path / f"{source}-links"
        links.mkdir()
        shutil.copytree(intact[source], blobs)
        for number, file in enumerate(sorted(blobs.iterdir())):
            blob = file.rename(blobs / f"blob{number}")
            (links / file.name).symlink_to(blob)
        assert (hero_moe.load(links).logits(ids) == logits).all()
    run_hero(*command("train", tmp_path / "shards-links", intact["qwen3"], data, tmp_path / "run"))


def limited() -> None:
    """Limits the process to 2 GiB of memory and 30 s of CPU time."""
    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))


LARGEST = 2**31 - 1
HUGE: list[tuple[Json, str]] = [
    ({"num_hidden_layers": 60_000, "hidden_size": LARGEST}, "[512, 64], expected [512, 2147483647]"),
    ({"num_hidden_layers": 60_000}, "no tensor model.layers.3.input_layernorm.weight"),
    ({"vocab_size": LARGEST}, "[512, 64], expected [2147483647, 64]"),
    ({"num_experts": LARGEST}, "[8, 64], expected [2147483647, 64]"),
    ({"moe_intermediate_size": LARGEST}, "[32, 64], expected [2147483647, 64]"),
    ({"head_dim": LARGEST - 1, "num_attention_heads": LARGEST - 1}, "expected [4611686009837453316, 64]"),
    (
        {"num_hidden_layers": LARGEST},
        "num_hidden_layers: found 2147483647, expected an integer from 1 to 65535",
    ),
    (
        {"hidden_size": 2**53 - 1},
        "hidden_size: found 9007199254740991, expected an integer from 1 to 2147483647",
    ),
    ({"hidden_size": 2**64}, "hidden_size: found 1.8446744073709552e+19, expected an integer"),
    ({"hidden_size": -64}, "hidden_size: found -64, expected an integer from 1"),
    ({"num_experts": -(2**63)}, "num_experts: found -9223372036854775808, expected an integer"),
    ({"vocab_size": 0}, "vocab_size: found 0, expected an integer from 1"),
]


@pytest.mark.parametrize(
    ("word", "keys", "part"),
    [(w, *h) for w, h in zip(itertools.cycle(["logits", "train"]), HUGE, strict=False)],
)
def test_huge_sizes_allocate_nothing(
    intact: dict[str, Path], data: Path, tmp_path: Path, word: str, keys: Json, part: str
) -> None:
    """Nothing is allocated before the weights are checked against the configuration."""
    folder = tmp_path / "folder"
    shutil.copytree(intact["qwen3"], folder)
    router(stages=[])(folder)
    config(**keys)(folder)
    words = command(word, folder, intact["qwen3"], data, tmp_path / "out")
    assert_exit_2(hero(*words, preexec_fn=limited), str(folder), part)
    assert not list(tmp_path.glob("out*"))


def test_limits_are_sufficient_for_a_model(intact: dict[str, Path], tmp_path: Path) -> None:
    """The limits above are sufficient for a model; positions need no memory before they are used."""
    folder = tmp_path / "folder"
    shutil.copytree(intact["qwen3"], folder)
    config(max_position_embeddings=LARGEST)(folder)
    run_hero(*command("logits", folder, folder, folder, tmp_path / "out"), preexec_fn=limited)
    assert load_file(tmp_path / "out")["logits.0"].shape == (3, 512)
