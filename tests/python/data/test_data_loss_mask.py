"""Loss masks of conversations: the assistant's tokens as transformers' return_assistant_tokens_mask marks them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from transformers import AutoTokenizer

from data_files import documents, masks, options, train_bpe, train_sentencepiece, write_rows
from hero_moe.data import BUILT_IN, RecordFormat, TokenizerFile, load_tokenizer, tokenize
from hero_moe.data.commands import main
from hero_moe.data.encoders import make_encoder
from hero_moe.data.token_writer import TokenWriter, publish

CHATS = [
    [
        {"role": "system", "content": "Be  brief. "},
        {"role": "user", "content": "路由?\n🦆 assistant"},
        {"role": "assistant", "content": "def f(): return {'a': 1}"},
        {"role": "user", "content": "ok"},
        {"role": "assistant", "content": "🦆 assistant\n\n路由"},
    ],
    [{"role": "assistant", "content": "历史"}, {"role": "user", "content": "历史"}],
    [{"role": "user", "content": "no answer"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": " spaces  around \n"}],
]


def both(template: str) -> tuple[str, str]:
    """A template with the assistant's text in brackets, with and without generation blocks."""
    marked = template.replace("[[", "{% generation %}").replace("]]", "{% endgeneration %}")
    return marked, template.replace("[[", "").replace("]]", "")


STYLES = {
    "chatml": both(
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant\n' }}[[{{ m.content + '<|im_end|>' }}]]{{ '\n' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    ),
    "llama": both(
        "{{ '<s>' }}{% for m in messages %}{{ '<|start|>' + m.role + '<|end|>\n\n' }}"
        "{% if m.role == 'assistant' %}[[{{ m.content | trim + '<|eot|>' }}]]"
        "{% else %}{{ m.content | trim + '<|eot|>' }}{% endif %}{% endfor %}"
    ),
    "instruct": both(
        "{% for m in messages %}{% if m.role == 'assistant' %}[[{{ ' ' + m.content + eos_token }}]]"
        "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TokenizerFile:
    return load_tokenizer(str(folder))


def write_masks(
    folder: Path, tokenizer: TokenizerFile, template: str, chats: list[Any] = CHATS, **more: Any
) -> Path:
    """The prefix of token files of conversations, with their masks."""
    path = write_rows(folder / "chats.jsonl", [{"m": chat} for chat in chats])
    records = RecordFormat(
        messages="m", chat_template=template, special_tokens=tokenizer.special_tokens, loss_mask=True
    )
    tokenize(
        options(tokenizer, [path], folder / "chat", records=records, **{"valid_fraction": 0, **more}),
        restart=True,
        overwrite=True,
    )
    return folder / "chat"


@pytest.mark.parametrize("style", STYLES)
def test_as_transformers_marks_them(
    tmp_path: Path, folder: Path, tokenizer: TokenizerFile, style: str
) -> None:
    """With generation blocks, and by role without them. transformers' mask has no end-of-document token."""
    marked, plain = STYLES[style]
    reference = AutoTokenizer.from_pretrained(folder)
    expected_masks = []
    for chat in CHATS:
        expected = reference.apply_chat_template(
            chat, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = expected["input_ids"], expected["assistant_masks"]
        if ids[-1] != tokenizer.eos_id:
            mask = [*mask, int(chat[-1]["role"] == "assistant")]
        expected_masks.append(mask)
    assert sum(map(sum, expected_masks)) > 40
    assert masks(Path(f"{write_masks(tmp_path, tokenizer, marked)}-train")) == expected_masks
    if style != "instruct":  # where the space before the content is the assistant's only if it is marked
        assert masks(Path(f"{write_masks(tmp_path, tokenizer, plain)}-train")) == expected_masks


def marked_texts(prefix: Path, folder: Path) -> list[list[str]]:
    """The consecutive tokens of each document that the mask marks, as text."""
    decode = AutoTokenizer.from_pretrained(folder).decode
    found = []
    for document, mask in zip(documents(Path(f"{prefix}-train")), masks(Path(f"{prefix}-train"))):
        edges = np.flatnonzero(np.diff([0, *mask, 0])).reshape(-1, 2)
        found.append([decode(document[begin:end]) for begin, end in edges.tolist()])
    return found


def test_built_in_templates(tmp_path: Path, folder: Path, tokenizer: TokenizerFile) -> None:
    found = {
        name: marked_texts(write_masks(tmp_path, tokenizer, template, CHATS[:1]), folder)[0]
        for name, template in BUILT_IN.items()
    }
    first, second = "def f(): return {'a': 1}", "🦆 assistant\n\n路由"
    assert found == {
        "chatml": [first + "<|im_end|>", second + "<|im_end|>", "<|endoftext|>"],
        "llama3": [first + "<|eot_id|>", second + "<|eot_id|><|endoftext|>"],
        "deepseek": [first + "<｜end▁of▁sentence｜>", second + "<｜end▁of▁sentence｜><|endoftext|>"],
        "plain": [" " + first, " " + second + "<|endoftext|>"],
    }


def test_sentencepiece(tmp_path: Path) -> None:
    """Characters of several byte tokens, and U+2581, which is three tokens."""
    tokenizer = load_tokenizer(str(train_sentencepiece(tmp_path)))
    chat = [
        {"role": "user", "content": "🦆é\u2581"},
        {"role": "assistant", "content": "🦩\u2581 路由 é\u0301"},
        {"role": "user", "content": "\u25815"},
    ]
    prefix = write_masks(tmp_path, tokenizer, BUILT_IN["plain"], [chat])
    (document,), (mask,) = documents(Path(f"{prefix}-train")), masks(Path(f"{prefix}-train"))
    text = "User: 🦆é\u2581\n\nAssistant: 🦩\u2581 路由 é\u0301\n\nUser: \u25815"
    (ids,) = make_encoder(tokenizer).encode([text], conversation=True)
    assert document == [*ids, tokenizer.eos_id]
    pieces = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.data)
    marked = pieces.decode([number for number, trained in zip(document, mask) if trained])
    assert marked.strip() == chat[1]["content"]
    assert np.count_nonzero(np.diff([0, *mask, 0])) == 2, "more than one range of tokens"


def test_pairs_splits_workers_and_the_data_card(tmp_path: Path, tokenizer: TokenizerFile) -> None:
    rows = [{"q": f"question {i} 路", "a": f"answer {i} 🦆" * (i % 5 + 1)} for i in range(60)]
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    files = {}
    for workers in (1, 2):
        out = tmp_path / f"{workers}" / "pairs"
        records = RecordFormat(prompt="q", response="a", chat_template=BUILT_IN["chatml"], loss_mask=True)
        result = tokenize(
            options(
                tokenizer,
                [path],
                out,
                records=records,
                workers=workers,
                batch_bytes=400,
                commit_bytes=1000,
                valid_fraction=0.1,
            )
        )
        files[workers] = {
            p.name: p.read_bytes() for p in out.parent.iterdir() if p.suffix in (".bin", ".idx")
        }
        card = json.loads(Path(f"{out}.json").read_text())
        for split in ("train", "valid"):
            trained = sum(map(sum, masks(Path(f"{out}-{split}"))))
            assert (
                card["splits"][split]["trained_tokens"] == trained == result.splits[split]["trained_tokens"]
            )
            assert 0 < trained < card["splits"][split]["tokens"]
    assert files[1] == files[2] and len(files[1]) == 8


def test_writer_resumes_with_masks(tmp_path: Path) -> None:
    """After every document, also while one is held back for validation; what follows a commit is discarded."""
    documents = [bytes([i, 0] * (i + 1)) for i in range(12)]
    masks = [bytes((i + j) % 2 for j in range(i + 1)) for i in range(12)]

    def write(prefix: Path, cut: int) -> dict[str, bytes]:
        prefix.parent.mkdir()
        state, done = None, 0
        for end in (cut, len(documents)):
            writer = TokenWriter(str(prefix), "<u2", 0.05, 1, state, loss_mask=True)
            for i in range(done, end):
                writer.add(documents[i], 1, masks[i])
            state, done = json.loads(json.dumps(writer.commit())), end
            writer.add(b"\1\0" * 3, 1, b"\1\1\1") if end == cut else writer.end()
            splits = writer.splits
            writer.close()
        publish(str(prefix), "<u2", splits)
        return {p.name: p.read_bytes() for p in prefix.parent.glob("*") if p.suffix in (".bin", ".idx")}

    whole = write(tmp_path / "whole" / "o", 0)
    assert len(whole) == 8 and len(whole["o-train.bin"]) == 2 * len(whole["o-train-mask.bin"])
    assert sum(whole["o-train-mask.bin"]) + sum(whole["o-valid-mask.bin"]) == sum(map(sum, masks))
    for cut in range(1, len(documents)):
        assert write(tmp_path / str(cut) / "o", cut) == whole, cut


def test_replaced_token_files_lose_their_mask(tmp_path: Path, tokenizer: TokenizerFile) -> None:
    prefix = write_masks(tmp_path, tokenizer, BUILT_IN["chatml"])
    assert Path(f"{prefix}-train-mask.bin").exists()
    path = write_rows(tmp_path / "text.jsonl", [{"text": "router"}])
    tokenize(options(tokenizer, [path], prefix, valid_fraction=0), restart=True, overwrite=True)
    assert not list(tmp_path.glob("*mask*"))
    assert "trained_tokens" not in Path(f"{prefix}.json").read_text()


REJECTED = {
    # A template may depend on what follows, or write more around some contents.
    "{% for m in messages %}{{ m.role ~ m.content ~ (eos_token if loop.last else '') }}{% endfor %}": (
        "chat template: it renders the first 3 of 5 messages differently if others follow, so that the "
        "assistant's tokens are unknown; mark the assistant's text with {% generation %}, or pass "
        "--no-loss-mask"
    ),
    "{% for m in messages %}{{ m.role ~ m.content ~ m.content | length }}{% endfor %}": (
        "chat template: what it writes around the content of message 2 depends on the content, so that the "
        "assistant's tokens are unknown; mark the assistant's text with {% generation %}, or pass "
        "--no-loss-mask"
    ),
    "{% if messages | length == 3 %}{{ raise_exception('odd') }}{% endif %}"
    "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}": (
        "chat template: it rejects the first 3 of 5 messages (odd), so that the assistant's tokens are unknown; "
        "mark the assistant's text with {% generation %}, or pass --no-loss-mask"
    ),
    "{% for m in messages %}{% set x %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}"
    "{{ x | truncate(20, true) }}{% endfor %}": (
        "chat template: it changes the text of a {% generation %} block after the block, expected a block that "
        "is written as it is (--no-loss-mask writes no loss mask)"
    ),
}


@pytest.mark.parametrize("template", REJECTED)
def test_templates_that_do_not_tell(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str], template: str
) -> None:
    path = write_rows(tmp_path / "chats.jsonl", [{"m": CHATS[0]}])
    words = ["tokenize", "--input", str(path), "--messages", "m", "--tokenizer", str(folder)]
    words += ["--out", str(tmp_path / "chat"), "--chat-template", template, "--workers", "1"]
    assert main(words) == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"python -m hero_moe.data: {path}: line 1, byte 0: {REJECTED[template]}"
    )
    assert main([*words, "--no-loss-mask", "--restart"]) == 0
    assert not list(tmp_path.glob("*mask*"))
