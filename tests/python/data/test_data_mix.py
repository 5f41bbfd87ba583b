"""hero_moe.data mix: configs/data/paper-mix.toml over small copies of its six corpora, and invalid mixes."""

from __future__ import annotations

import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from data_files import documents, json_lines, shared_bpe, token_files, train_sentencepiece, write_rows
from hero_moe.data import DataError, load_mix, load_tokenizer
from hero_moe.data.commands import main
from hero_moe.data.encoders import make_encoder
from program import CONFIGS, SMALL, hero, metrics, run_hero, toml

MIX = CONFIGS / "data" / "paper-mix.toml"
NAMES = ["dclm", "map-cc", "ultrachat", "tulu", "finemath", "megamath"]
TURNS = [{"content": "Why?", "role": "user"}, {"content": "Because.", "role": "assistant"}]


def text(name: str, number: int) -> str:
    return f"{name} {number}: router history expert 路由 \n\treturn"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the names, fields and types of the six corpora, 12 documents each."""
    root = tmp_path_factory.mktemp("root")
    for shard in range(2):
        rows: list[dict[str, Any]] = [
            {
                "bff_contained_ngram_count_before_dedupe": 0,
                "language_id_whole_page_fasttext": {"en": 0.9},
                "metadata": {"Content-Length": "1", "WARC-Type": "response"},
                "previous_word_count": 5,
                "text": text("dclm", 6 * shard + i),
                "url": "http://a.b/c",
                "warcinfo": "robots: classic",
                "fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train_prob": 0.1,
            }
            for i in range(6)
        ]
        place = f"dclm-baseline-1.0/global-shard_01_of_10/local-shard_{shard}_of_10"
        extension = "zst" if shard else "zstd"
        write_rows(root / place / f"shard_00000000_processed.jsonl.{extension}", rows)
    (root / "MAP-CC").mkdir()
    (root / "MAP-CC" / "README.md").write_text("---\nlicense: cc-by-nc-nd-4.0\n---\n# MAP-CC\n")
    for name, begin in (("zh_baike", 0), ("zh_cc", 6)):
        data = gzip.compress(
            json_lines([{"id": i, "text": text("map-cc", i)} for i in range(begin, begin + 6)])
        )
        (root / "MAP-CC" / f"{name}.jsonl.gz.part01").write_bytes(data[:70])
        (root / "MAP-CC" / f"{name}.jsonl.gz.part02").write_bytes(data[70:])
    chat = [
        {"prompt": text("ultrachat", i), "prompt_id": "f0", "messages": _turns("ultrachat", i)}
        for i in range(12)
    ]
    for split in ("train_sft", "test_sft", "train_gen"):
        write_rows(root / "ultrachat_200k" / "data" / f"{split}-00000-of-00001-a3ec.parquet", chat)
    (root / "ultrachat_200k" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        + "".join(f"  - split: {s}\n    path: data/{s}-*\n" for s in ("train_sft", "test_sft", "train_gen"))
        + "---\n"
    )
    tulu = [{"id": f"t{i}", "messages": _turns("tulu", i), "source": "ai2"} for i in range(12)]
    for shard in range(2):
        path = root / "tulu-3-sft-mixture" / "data" / f"train-0000{shard}-of-00002.parquet"
        write_rows(path, tulu[6 * shard :][:6])
    math = [
        {"url": "u", "fetch_time": 1, "warc_record_offset": 2, "text": text("finemath", i), "token_count": 9,
         "score": 4.5, "int_score": 4, "crawl": "CC", "snapshot_type": "longest", "language": "en",
         "language_score": 0.9}
        for i in range(12)
    ]  # fmt: skip
    write_rows(root / "finemath" / "finemath-4plus" / "train-00000-of-00064.parquet", math)
    write_rows(root / "finemath" / "finemath-3plus" / "train-00000-of-00128.parquet", math)
    mega = [
        {"text": text("megamath", i), "timestamp": datetime(2024, 5, 1), "url": "u", "math_score": 0.9}
        for i in range(12)
    ]
    write_rows(root / "MegaMath" / "megamath-web-pro" / "000_00000.parquet", mega, group=5)
    write_rows(root / "MegaMath" / "megamath-code" / "00000.parquet", [{"file_info": {"path": "a"}}])
    train_sentencepiece(root)
    return root


def _turns(name: str, number: int) -> list[dict[str, str]]:
    return [{"content": text(name, number), "role": "user"}, *TURNS[1:]]


def test_the_paper_mix(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = root / "pieces.model", tmp_path / "out"
    words = [
        "mix",
        str(MIX),
        "--root",
        str(root),
        "--tokenizer",
        str(model),
        "--out",
        str(out),
        "--workers",
        "1",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    encoder = make_encoder(tokenizer := load_tokenizer(str(model)))
    for name in NAMES:
        texts = [text(name, i) for i in range(12)]
        if name in ("ultrachat", "tulu"):
            texts = [f"User: {t}\n\nAssistant: Because." for t in texts]
        expected = [[*ids, tokenizer.eos_id] for ids in encoder.encode(texts, conversation=False)]
        found = documents(out / f"{name}-train") + documents(out / f"{name}-valid")
        assert sorted(found) == sorted(expected), name
        run_hero("data", "info", out / name)
    blend = (out / "blend.txt").read_text().split()
    weights = {corpus.name: corpus.weight for corpus in load_mix(str(MIX))}
    assert list(weights) == NAMES and abs(sum(weights.values()) - 1) < 1e-12
    assert blend == [f"{weights[name]:g}:{out / name}" for name in NAMES]
    assert printed.endswith(f"hero train --data {' '.join(blend)}\n")

    # finished corpora are skipped
    before = {name: token_files(out / name) for name in NAMES}
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.bin")}
    assert main(words) == 0
    assert capsys.readouterr().out.count("already complete") == 6
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.bin")} == stamps
    assert {name: token_files(out / name) for name in NAMES} == before

    # hero train accepts the blend
    config = tmp_path / "small.toml"
    config.write_text(toml({**SMALL, "train.steps": 2}))
    trained = hero("train", "--config", config, "--data", *blend, "--run", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr


def test_only_selects_corpora(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "mix",
        str(MIX),
        "--root",
        str(root),
        "--tokenizer",
        str(root / "pieces.model"),
        "--out",
        str(tmp_path),
    ]
    assert main([*words, "--workers", "1", "--only", "tulu", "finemath", "--chat-template", "chatml"]) == 0
    assert (tmp_path / "blend.txt").read_text() == f"0.015:{tmp_path}/tulu 0.08:{tmp_path}/finemath\n"
    assert "<|im_start|>user" in run_hero("data", "info", tmp_path / "tulu").stdout
    capsys.readouterr()
    assert main([*words, "--only", "the-pile"]) == 2
    assert "--only the-pile: no such corpus" in capsys.readouterr().err
    words[3] = str(tmp_path)
    assert main([*words, "--only", "tulu"]) == 2
    assert "found no tulu (tulu-3-sft-mixture, allenai/tulu-3-sft-mixture)" in capsys.readouterr().err


def test_loss_masks_of_conversations(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of `tokenize`, and hero train reads the blend with them; all corpora have one or none."""
    model = str(root / "pieces.model")
    common = ["--tokenizer", model, "--workers", "1", "--chat-template", "chatml", "--valid-fraction", "0.2"]
    mix = ["mix", str(MIX), "--root", str(root), *common]
    out, alone = tmp_path / "out", tmp_path / "alone"
    assert main([*mix, "--out", str(out), "--only", "tulu", "ultrachat"]) == 0
    words = ["tokenize", "--input", str(root / "tulu-3-sft-mixture" / "data"), "--messages", "messages"]
    assert main([*words, *common, "--split", "all", "--out", str(alone)]) == 0
    for half in ("train", "valid"):
        for end in (".bin", ".idx", "-mask.bin", "-mask.idx"):
            assert Path(f"{out}/tulu-{half}{end}").read_bytes() == Path(f"{alone}-{half}{end}").read_bytes()
        assert 0 < sum(Path(f"{out}/ultrachat-{half}-mask.bin").read_bytes())
    config = tmp_path / "small.toml"
    config.write_text(toml({**SMALL, "train.steps": 2, "train.loss_mask": True}))
    blend = (out / "blend.txt").read_text().split()
    run_hero("train", "--config", config, "--data", *blend, "--run", tmp_path / "run")
    assert all(0 < line["trained_tokens"] < line["tokens"] for line in metrics(tmp_path / "run")[:1])

    plain = tmp_path / "plain"
    assert main([*mix, "--out", str(plain), "--only", "tulu", "ultrachat", "--no-loss-mask"]) == 0
    assert (plain / "tulu-train.bin").read_bytes() == (out / "tulu-train.bin").read_bytes()
    assert not list(plain.glob("*mask*"))

    mixed = tmp_path / "mixed"
    selected = [*mix, "--out", str(mixed), "--only", "tulu", "finemath", "dclm"]
    capsys.readouterr()
    assert main([*selected, "--loss-mask"]) == 2
    assert (
        "--loss-mask: found corpora without messages or prompt (dclm, finemath), expected only conversations"
    ) in capsys.readouterr().err
    assert not mixed.exists()
    assert main(selected) == 0
    assert not list(mixed.glob("*mask*"))


def mix_words(folder: Path, corpora: dict[str, tuple[str, str]]) -> list[str]:
    """`mix` of corpora by name: path and weight; a.jsonl is one."""
    write_rows(folder / "a.jsonl", [{"text": "a"}])
    mix = folder / "mix.toml"
    tables = [f'[corpus.{name}]\npath = "{path}"\nweight = {w}\n' for name, (path, w) in corpora.items()]
    mix.write_text("".join(tables))
    paths = {"--root": folder, "--tokenizer": shared_bpe(), "--out": folder / "out"}
    return ["mix", str(mix), *(str(word) for pair in paths.items() for word in pair), "--workers", "1"]


def test_checks_all_corpora_before_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(mix_words(tmp_path, {"first": ("a.jsonl", "1"), "second": ("b*.jsonl", "1")})) == 2
    assert capsys.readouterr().err.endswith(f"second: {tmp_path}/b*.jsonl: no file matches\n")
    assert not (tmp_path / "out").exists()


def test_weights_keep_all_digits(tmp_path: Path) -> None:
    assert main(mix_words(tmp_path, {"a": ("a.jsonl", "0.12345678901"), "b": ("a.jsonl", "3")})) == 0
    out = tmp_path / "out"
    assert (out / "blend.txt").read_text() == f"0.12345678901:{out}/a 3:{out}/b\n"


GOOD = '[corpus.a]\npath = "a"\nweight = 1\n'


def test_rejects_a_mix_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_bytes(b"# \xff\n")
    with pytest.raises(DataError, match=r"mix.toml: byte 2: invalid UTF-8"):
        load_mix(str(tmp_path / "mix.toml"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            GOOD + "wieght = 2\n",
            r"mix.toml: corpus.a.wieght: unknown key, expected one of dataset, path, weight",
        ),
        ("seed = 3\n" + GOOD, r"mix.toml: seed: unknown key"),
        ("", r"mix.toml: found no corpus"),
        ("[corpus\n", r"mix.toml: invalid TOML"),
        ('[corpus.a]\npath = "a"\n', r"corpus.a.weight: found None, expected a number above 0"),
        ('[corpus.a]\npath = "a"\nweight = 0\n', r"corpus.a.weight: found 0"),
        ("[corpus.a]\nweight = 1\n", r"corpus.a.path: found None, expected a path"),
        (GOOD + "text_key = 3\n", r"corpus.a.text_key: found 3, expected a string"),
        (GOOD + 'text_key = "t"\nmessages = "m"\n', r"corpus.a: found 2 ways to read records"),
        (GOOD + 'prompt = "p"\n', r"corpus.a: --prompt and --response: found only one"),
    ],
)
def test_rejects_invalid_mixes(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_mix(str(path))
