"""hero_moe.data tokenize writes the bytes of `hero data tokenize`, with any number of workers and after any
crash."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from data_files import documents, options, some_texts, token_files, train_bpe, train_sentencepiece, write_rows
from hero_moe.data import DataError, TokenizerFile, load_tokenizer, readers, tokenize, workers
from hero_moe.data.commands import main
from program import ENVIRONMENT, ROOT, run_hero

TEXTS = some_texts(400, seed=3) + ["a" * 70_000 + "é" * 40_000 + " z\u2581", "\u2581", "x\0y"]
COMMAND = [sys.executable, "-m", "hero_moe.data", "tokenize"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with TEXTS as c.jsonl and the tokenizer pieces.model."""
    folder = tmp_path_factory.mktemp("texts")
    write_rows(folder / "c.jsonl", [{"text": text} for text in TEXTS])
    train_sentencepiece(folder)
    return folder


@pytest.fixture(scope="module")
def pieces(folder: Path) -> TokenizerFile:
    return load_tokenizer(str(folder / "pieces.model"))


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, pieces: TokenizerFile) -> dict[str, bytes]:
    """The token files of an uninterrupted run."""
    tokenize(options(pieces, [folder / "c.jsonl"], folder / "whole", valid_fraction=0.1))
    return token_files(folder / "whole")


@pytest.mark.parametrize(
    "flags",
    [
        ("--valid-fraction", "0.1"),
        ("--valid-fraction", "0"),
        ("--valid-fraction", "1e-9", "--seed", "5"),
        (),
    ],
)
def test_same_bytes_as_hero_data_tokenize(tmp_path: Path, folder: Path, flags: tuple[str, ...]) -> None:
    words = ("--input", folder / "c.jsonl", "--tokenizer", folder / "pieces.model", "--workers", 1, *flags)
    run_hero("data", "tokenize", *words, "--out", tmp_path / "theirs")
    assert main(["tokenize", *map(str, words), "--out", str(tmp_path / "ours")]) == 0
    theirs = token_files(tmp_path / "theirs")
    assert token_files(tmp_path / "ours") == theirs
    assert len(theirs) == (3 if "0" in flags else 5)
    assert (tmp_path / "ours.model").read_bytes() == (tmp_path / "theirs.model").read_bytes()
    assert "pieces" not in (tmp_path / "ours.json").read_text()
    left = {path.name.removeprefix("ours") for path in tmp_path.glob("ours*")}
    assert left == {*theirs, ".model", ".position.json"}
    run_hero("data", "info", tmp_path / "ours")


def test_same_bytes_for_any_format_worker_count_and_batch_size(
    tmp_path: Path, folder: Path, uninterrupted: dict[str, bytes]
) -> None:
    rows = [{"n": i, "text": text} for i, text in enumerate(TEXTS)]
    write_rows(tmp_path / "in" / "a.parquet", rows[:150])
    write_rows(tmp_path / "in" / "b.arrow", rows[150:300])
    write_rows(tmp_path / "in" / "c.jsonl.gz", rows[300:])
    subprocess.run(
        [*COMMAND, "--input", tmp_path / "in", "--tokenizer", folder / "pieces.model", "--out",
         tmp_path / "o",
         "--valid", "0.1", "--workers", "2", "--batch-rows", "40", "--batch-bytes", "900",
         "--commit-bytes", "5000"],
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT / "python")}, check=True, timeout=300,
    )  # fmt: skip
    assert token_files(tmp_path / "o") == uninterrupted


def test_tokenizer_json_and_wide_tokens(tmp_path: Path, folder: Path) -> None:
    bpe = train_bpe(tmp_path / "bpe")
    tokenize(options(bpe, [folder / "c.jsonl"], tmp_path / "o", valid_fraction=0))
    reference = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    end = reference.token_to_id("<|endoftext|>")
    expected = [[*reference.encode(text, add_special_tokens=False).ids, end] for text in TEXTS if text]
    assert documents(tmp_path / "o-train") == expected
    sidecar = json.loads((tmp_path / "o.json").read_text())
    assert (sidecar["tokenizer"], sidecar["eos_id"]) == ("o.tokenizer.json", end)
    assert sidecar["vocab_size"] == reference.get_vocab_size()
    assert (tmp_path / "o.tokenizer.json").read_bytes() == (bpe / "tokenizer.json").read_bytes()

    (bpe / "tokenizer_config.json").unlink()  # then the default end tokens apply
    file = load_tokenizer(str(bpe / "tokenizer.json"))
    assert file.eos_id == end
    wide = TokenizerFile(file.kind, file.data, 70_000, file.eos_id)
    tokenize(options(wide, [folder / "c.jsonl"], tmp_path / "w", valid_fraction=0))
    assert documents(tmp_path / "w-train") == expected
    assert Path(tmp_path / "w-train.bin").stat().st_size == 2 * Path(tmp_path / "o-train.bin").stat().st_size
    (tmp_path / "w.tokenizer.json").unlink()  # its vocabulary does not match the counts
    assert "int32" in run_hero("data", "info", tmp_path / "w").stdout


def test_a_folder_that_only_transformers_loads(tmp_path: Path, folder: Path) -> None:
    bpe = train_bpe(tmp_path / "bpe")
    state = json.loads((bpe / "tokenizer.json").read_text())["model"]
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "vocab.json").write_text(json.dumps(state["vocab"]))
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in state["merges"]]
    (tmp_path / "gpt2" / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (tmp_path / "gpt2" / "tokenizer_config.json").write_text(json.dumps(config))
    file = load_tokenizer(str(tmp_path / "gpt2"))
    assert (file.kind, file.eos_id) == ("tokenizers", state["vocab"]["<|endoftext|>"])
    tokenize(options(file, [folder / "c.jsonl"], tmp_path / "o", valid_fraction=0))
    copy = Tokenizer.from_file(str(tmp_path / "o.tokenizer.json"))
    texts = [text for text in TEXTS if text]
    expected = [[*copy.encode(text, add_special_tokens=False).ids, file.eos_id] for text in texts]
    assert documents(tmp_path / "o-train") == expected


def runs_to_completion(work: Callable[[], Any], calls: int) -> bool:
    """Runs `work` in a forked process that SIGKILLs itself at file-changing call number `calls`; returns
    whether it finished."""
    child = os.fork()
    if child == 0:
        left = calls

        def kill_at(name: str) -> None:
            inner = getattr(os, name)

            def call(*words: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return inner(*words, **more)

            setattr(os, name, call)

        for name in ("fsync", "replace", "remove", "open"):
            kill_at(name)
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.zst", "c.parquet", "c.arrow"])
@pytest.mark.parametrize("fraction", [0.1, 1e-9])
def test_repeated_kills(tmp_path: Path, pieces: TokenizerFile, name: str, fraction: float) -> None:
    """Gives the bytes of an uninterrupted run, with and without a held-back validation document."""
    path = write_rows(tmp_path / name, [{"text": text} for text in TEXTS])
    small = {"valid_fraction": fraction, "batch_rows": 7, "batch_bytes": 400, "commit_bytes": 1500}
    tokenize(options(pieces, [path], tmp_path / "whole", valid_fraction=fraction))
    rng, kills = random.Random(f"{name} {fraction}"), 0
    started = options(pieces, [path], tmp_path / "o", **small)
    while not runs_to_completion(lambda: tokenize(started), rng.randint(1, 60)):
        kills += 1
        assert kills < 200
    assert kills >= 3
    assert token_files(tmp_path / "o") == token_files(tmp_path / "whole")
    assert not list(tmp_path.glob("o*.tmp"))


def test_kills_during_the_final_steps(tmp_path: Path, folder: Path, pieces: TokenizerFile) -> None:
    """A kill at every call after the last commit, over the files of an earlier run."""
    rows = [{"text": text} for text in TEXTS[:40]]
    path = write_rows(tmp_path / "a.jsonl", rows)
    tokenize(options(pieces, [path], tmp_path / "whole", valid_fraction=0.2))
    started = options(pieces, [path], tmp_path / "o", valid_fraction=0.2)
    calls, finished = 0, False
    while not finished:
        calls += 1
        tokenize(options(pieces, [folder / "c.jsonl"], tmp_path / "o"), restart=True, overwrite=True)
        finished = runs_to_completion(lambda: tokenize(started, restart=True, overwrite=True), calls)
        if (
            finished
            or json.loads(Path(tmp_path / "o.position.json").read_text())["options"]["valid_fraction"] == 0.2
        ):
            tokenize(started)
            assert token_files(tmp_path / "o") == token_files(tmp_path / "whole")
    assert calls > 15


def test_resumes_after_sigkill_and_ctrl_c(
    tmp_path: Path, folder: Path, uninterrupted: dict[str, bytes]
) -> None:
    """The command with worker processes: killed, interrupted, then run to completion."""
    out = tmp_path / "o"
    command = [
        *COMMAND, "--input", folder / "c.jsonl", "--tokenizer", folder / "pieces.model", "--out", out,
        "--valid", "0.1", "--workers", "2", "--batch-bytes", "60", "--commit-bytes", "200",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "python")}
    position = Path(f"{out}.position.json")
    for number, how in enumerate((signal.SIGKILL, signal.SIGINT)):
        # Background jobs may ignore SIGINT, and children inherit that.
        run = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        begin = position.stat().st_size if number else 0
        end = time.monotonic() + 120
        before = json.loads(position.read_text())["place"] if begin else None
        while run.poll() is None and time.monotonic() < end:
            if position.exists() and json.loads(position.read_text())["place"] not in (before, [0, 0, 0]):
                break
            time.sleep(0.005)
        run.send_signal(how)
        _, errors = run.communicate(timeout=60)
        assert json.loads(position.read_text())["stage"] == "reading"
        if how == signal.SIGINT:
            assert run.returncode == 130
            assert "interrupted; the same command resumes" in errors and "Traceback" not in errors
    subprocess.run([*command, "--resume"], env=environment, check=True, timeout=120)
    assert token_files(out) == uninterrupted


# The command with a Ctrl-C right after its first worker has started, before the pool knows it.
INTERRUPTED_START = """
import multiprocessing.context, signal, sys
from hero_moe.data.commands import main

process = multiprocessing.context.SpawnProcess
start = process.start

def interrupted(self):
    start(self)
    process.start = start
    signal.raise_signal(signal.SIGINT)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process.start = interrupted
    sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_while_a_worker_starts(tmp_path: Path, folder: Path, uninterrupted: dict[str, bytes]) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED_START)
    words = [
        "tokenize", "--input", folder / "c.jsonl", "--tokenizer", folder / "pieces.model", "--out", tmp_path / "o",
        "--valid", "0.1", "--workers", "2", "--batch-bytes", "60",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT / "python")}
    run = subprocess.run(
        [sys.executable, script, *words], env=environment, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 130
    assert "interrupted; the same command resumes" in run.stderr and "Traceback" not in run.stderr
    subprocess.run([*COMMAND[:-1], *words], env=environment, check=True, timeout=120)
    assert token_files(tmp_path / "o") == uninterrupted


def test_does_not_replace_its_input(tmp_path: Path, pieces: TokenizerFile) -> None:
    path = write_rows(tmp_path / "mine.json", [{"text": text} for text in TEXTS])
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"--out .*mine: would replace the input .*mine.json"):
        tokenize(options(pieces, [path], tmp_path / "mine"), overwrite=True)
    assert path.read_bytes() == before


def test_resumes_only_with_the_same_options_and_sources(tmp_path: Path, pieces: TokenizerFile) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": text, "body": "b"} for text in TEXTS])
    started = options(pieces, [path], tmp_path / "o", commit_bytes=100, batch_bytes=400)
    with pytest.raises(DataError, match=r"o.position.json: no such file, expected one to resume from"):
        tokenize(started, resume=True)
    assert not runs_to_completion(lambda: tokenize(started), 25)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for change, message in [
        ({"seed": 5}, "seed was 1234 at the start, found 5"),
        ({"valid_fraction": 0.5}, "valid_fraction was 0.01 at the start, found 0.5"),
        ({"strict": True}, "strict was false at the start, found true"),
    ]:
        with pytest.raises(DataError, match=f"o.position.json: {message}.*--restart starts over"):
            tokenize(options(pieces, [path], tmp_path / "o", **change))
    position = tmp_path / "o.position.json"
    saved = json.loads(position.read_text())
    for key, damage in [
        ("options", []), ("sources", [3]), ("stage", "done"), ("source", 7), ("source", "a"), ("place", [0, -1, 0]),
        ("records", "1"), ("left_out", {}), ("in_source", []), ("writer", {}), ("writer", {"splits": 1}),
        ("writer", {"documents": 0, "splits": {"train": 3}, "held": None}),
    ]:  # fmt: skip
        position.write_text(json.dumps(saved | {key: damage}))
        with pytest.raises(DataError, match=r"o.position.json: invalid \(.*--restart starts over"):
            tokenize(started)
    position.write_text(json.dumps(saved | {"stage": "ended", "writer": None}))
    with pytest.raises(DataError, match=r"o.position.json: invalid \(found no valid writer"):
        tokenize(started)
    position.write_text(json.dumps(saved))
    before["o.position.json"] = position.read_bytes()
    code = main(
        [
            "tokenize",
            "--input",
            str(path),
            "--tokenizer",
            str(tmp_path / "none"),
            "--out",
            str(tmp_path / "o"),
        ]
    )
    assert code == 2
    write_rows(path, [{"text": "other"}] * 500)
    with pytest.raises(DataError, match=r"the source .*a.jsonl of \d+ bytes has changed"):
        tokenize(started)
    path.write_bytes(before.pop("a.jsonl"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p != path} == before
    with pytest.raises(DataError, match="started with 1 source files, found 2"):
        tokenize(options(pieces, [path, write_rows(tmp_path / "b.jsonl", [{"text": "b"}])], tmp_path / "o"))
    os.truncate(tmp_path / "o-train.bin.tmp", 3)
    with pytest.raises(DataError, match=r"o-train.bin.tmp: found less than the \d+ committed bytes"):
        tokenize(started)
    result = tokenize(started, restart=True, overwrite=True)
    assert not result.was_complete and tokenize(started).was_complete
    (tmp_path / "o-valid.idx").unlink()  # then it is written again
    assert not tokenize(started).was_complete and (tmp_path / "o-valid.idx").exists()


def test_token_files_inside_the_folder_of_their_sources(tmp_path: Path, pieces: TokenizerFile) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    (tmp_path / "tokenizer.json").write_text("{}")
    started = options(pieces, [tmp_path], tmp_path / "o", commit_bytes=100, batch_bytes=400)
    assert not runs_to_completion(lambda: tokenize(started), 25)
    assert not tokenize(started).was_complete
    assert tokenize(started).was_complete


def test_overwrites_finished_files_only_when_told(tmp_path: Path, pieces: TokenizerFile) -> None:
    first = write_rows(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS[:40]])
    other = write_rows(tmp_path / "b.jsonl", [{"text": "other"}] * 40)
    tokenize(options(pieces, [first], tmp_path / "o"))
    before = token_files(tmp_path / "o")
    started = options(pieces, [other], tmp_path / "o")
    with pytest.raises(DataError, match=r"o-train.bin: exists, expected a new --out, or --overwrite"):
        tokenize(started, restart=True)
    (tmp_path / "o.position.json").unlink()  # of files that hero data tokenize wrote
    with pytest.raises(DataError, match=r"o-train.bin: exists, expected a new --out, or --overwrite"):
        tokenize(started)
    assert token_files(tmp_path / "o") == before
    tokenize(started, overwrite=True)
    assert token_files(tmp_path / "o") != before


def test_lines_that_are_too_long(
    tmp_path: Path, pieces: TokenizerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 5000)
    monkeypatch.setattr(workers, "LONGEST_LINE", 5000)
    rows = [{"text": text} for text in ["a", "b" * 30_000, "[" * 5000, "c", "d" * 6000]]
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
        path = write_rows(tmp_path / name, rows)
        for size in (1000, 1 << 20):
            long = options(pieces, [path], tmp_path / "long", batch_bytes=size, valid_fraction=0)
            with pytest.raises(
                DataError, match=rf"{name}: line 2, byte 14: found a line of more than 5000 bytes"
            ):
                tokenize(long, restart=True, overwrite=True)
            skipping = replace(long, skip_invalid=True)
            assert tokenize(skipping, restart=True, overwrite=True).skipped["invalid"] == 3
            tokenize(
                options(
                    pieces,
                    [write_rows(tmp_path / "s.jsonl", [rows[0], rows[3]])],
                    tmp_path / "short",
                    valid_fraction=0,
                ),
                restart=True,
                overwrite=True,
            )
            assert (
                token_files(tmp_path / "long")["-train.bin"] == token_files(tmp_path / "short")["-train.bin"]
            )


def test_one_writer_at_a_time(tmp_path: Path, folder: Path, pieces: TokenizerFile) -> None:
    from hero_moe.data.token_writer import TokenWriter

    first = TokenWriter(str(tmp_path / "o"), "<u2", 0.1, 1)
    first.add(b"abcd", 4)
    first.commit()
    with pytest.raises(DataError, match="another process is writing these token files"):
        tokenize(options(pieces, [folder / "c.jsonl"], tmp_path / "o"))
    assert (tmp_path / "o-train.bin.tmp").read_bytes() == b"abcd"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required"),
        (["--input", "c.jsonl", "--out", "o", "--tokenizer", "t", "--color"], "--color"),
        (["--input", "c.jsonl", "--out", "o", "--tokenizer", "none"], "none: cannot be read (No such file"),
        (["--input", "c.jsonl", "--out", "o", "--tokenizer", "c.jsonl"], "c.jsonl: not a tokenizer.json"),
        (["--input", "none", "--out", "o", "--tokenizer", "pieces.model"], "none: no such file or folder"),
        (
            ["--valid", "1", "--input", "c.jsonl", "--out", "o", "--tokenizer", "pieces.model"],
            "--valid-fraction 1.0",
        ),
        (
            ["--chat-template", "plain", "--input", "c.jsonl", "--out", "o", "--tokenizer", "pieces.model"],
            "--chat-template: found no conversation",
        ),
        (
            ["--prompt", "p", "--input", "c.jsonl", "--out", "o", "--tokenizer", "pieces.model"],
            "--prompt and --response: found only one",
        ),
    ],
)
def test_rejects_invalid_commands(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["tokenize", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("python -m hero_moe.data: ")
    assert not list(folder.glob("o*"))


def test_templates_and_warnings_on_the_command_line(
    tmp_path: Path, folder: Path, pieces: TokenizerFile, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"q": "one", "a": "two"}] * 2)
    words = ["--input", str(path), "--tokenizer", str(folder / "pieces.model"), "--out", str(tmp_path / "o")]
    assert main(["tokenize", *words, "--template", r"{q}\n\n{a}", "--workers", "1", "--valid", "0"]) == 0
    run_hero("data", "info", tmp_path / "o")
    assert "one\n\ntwo" in run_hero("data", "info", tmp_path / "o").stdout
    capsys.readouterr()
    pair = [
        "--prompt",
        "q",
        "--response",
        "a",
        "--chat-template",
        "chatml",
        "--workers",
        "1",
        "--restart",
        "--overwrite",
    ]
    assert main(["tokenize", *words, *pair, "--valid", "0"]) == 0
    assert "writes <|im_end|>, <|im_start|>, which the tokenizer has no token for" in capsys.readouterr().err
