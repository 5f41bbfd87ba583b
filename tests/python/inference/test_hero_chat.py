"""`hero chat`: lines of stdin, and a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from chat_runs import client_of, create, trained_on_chats, without_template
from data_files import train_bpe
from program import DEEPSEEK, ENVIRONMENT, PROGRAM, assert_exit_2, hero, run_hero
from serving import serving


def chat_lines(run: Path, lines: str, *words: Any) -> list[str]:
    return run_hero("chat", run, *words, input=lines.encode()).stdout.split("\n")


def test_hero_chat_answers_lines(chat_run: Path, chat_client: openai.OpenAI) -> None:
    """Every line is a message; the n-th answer uses the n-th seed."""
    options = ["--seed", 5, "--max-tokens", 12, "--system", "Be brief."]
    first, second, third, rest = chat_lines(chat_run, "def index\n\nreturn\n/reset\ndef index\n", *options)
    assert rest == ""
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    for seed, content, found in ((5, "def index", first), (6, "return", second)):
        messages.append({"role": "user", "content": content})
        answer = create(chat_client, messages, seed=seed, max_tokens=12).choices[0].message.content
        assert found == answer.lstrip(" \n")
        messages.append({"role": "assistant", "content": answer})
    again = [messages[0], {"role": "user", "content": "def index"}]
    assert third == create(chat_client, again, seed=7, max_tokens=12).choices[0].message.content.lstrip(" \n")
    assert chat_lines(chat_run, "def index\n/exit\nreturn\n", *options) == [first, ""]
    assert chat_lines(chat_run, "def index", *options) == [first, ""]
    assert chat_lines(chat_run, "") == [""]


MODELS: dict[str, dict[str, Any]] = {
    "hero": {"router.kind": "hero"},
    "deepseek": DEEPSEEK | {"router.kind": "hero"},
    "capacity": {"router.eval_capacity_factor": 1.0},
}


@pytest.mark.parametrize("name", MODELS)
def test_turns_that_continue_the_cache(name: str, tmp_path: Path) -> None:
    """They answer as a server that computes the whole conversation."""
    run = trained_on_chats(tmp_path, train_bpe(tmp_path / "bpe"), "chatml", **MODELS[name])
    contents = ["def index", "return", "/reset", "def 路由", "history", "index", "return return"]
    options = ["--seed", 3, "--max-tokens", 6, "--temperature", 1.2]
    answers = iter(chat_lines(run, "\n".join(contents), *options))
    messages: list[Any] = []
    seed = 3
    with serving(run) as server:
        client = client_of(server)
        for content in contents:
            if content == "/reset":
                messages = []
                continue
            messages.append({"role": "user", "content": content})
            answer = create(client, messages, seed=seed, max_tokens=6, temperature=1.2)
            text = answer.choices[0].message.content
            assert next(answers) == text.lstrip(" \n")
            messages.append({"role": "assistant", "content": text})
            seed += 1
    assert [*answers] == [""]


def test_hero_chat_rejects(chat_run: Path, tmp_path: Path) -> None:
    long = hero("chat", chat_run, input=b"def " * 500 + b"\n")
    assert_exit_2(long, "tokens, expected fewer than the model's maximum length of 128", "/reset")
    assert_exit_2(hero("chat", chat_run, input=b"\xff\n"), "line 1: byte 0: invalid UTF-8")
    bare = without_template(chat_run, tmp_path / "bare")
    with_system = ["--chat-template", "deepseek", "--system", "a"]
    assert hero("chat", bare, *with_system, "--max-tokens", 1, input=b"a\n").returncode == 0


def read_until(terminal: int, text: bytes) -> bytes:
    found, deadline = b"", time.monotonic() + 60
    while text not in found:
        assert time.monotonic() < deadline, found
        if select.select([terminal], [], [], 1)[0]:
            found += os.read(terminal, 4096)
    return found


def test_hero_chat_in_a_terminal(chat_run: Path) -> None:
    """Ctrl-C stops an answer and discards a line, /reset starts again, Ctrl-D ends."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "chat", chat_run, "--max-tokens", "100", "--temperature", "5"],
        stdin=end,
        stdout=end,
        stderr=end,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        read_until(terminal, b"> ")
        os.write(terminal, b"def index\n")
        read_until(terminal, b"\n> ")
        os.write(terminal, b"unfinished")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"\n> ")
        os.write(terminal, b"/reset\n")
        read_until(terminal, b"> ")
        os.write(terminal, b"def " * 300 + b"\n")
        read_until(terminal, b"/reset starts again")
        os.write(terminal, b"index\n")
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"\n> ")
        os.write(terminal, b"\x04")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(end)
