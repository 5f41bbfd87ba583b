"""`python -m hero_moe.chat_renderer`: answers, limits, and what its process cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from program import ROOT

USER = [{"role": "user", "content": "a"}]


def run(lines: list[Any], **options: Any) -> tuple[int, list[dict[str, str]]]:
    """Exit status and answers."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(
        [sys.executable, "-m", "hero_moe.chat_renderer"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
        **options,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def start(template: str, max_bytes: int = 100) -> dict[str, Any]:
    return {"template": template, "special_tokens": {"eos_token": "</s>"}, "max_bytes": max_bytes}


def request(messages: Any = USER, prompt: bool = False) -> dict[str, Any]:
    return {"messages": messages, "add_generation_prompt": prompt}


def test_built_in_and_given_templates() -> None:
    status, (first, *texts) = run(
        [{"name": "chatml", "special_tokens": {}, "max_bytes": 100}, request(prompt=True), request()]
    )
    assert status == 0 and first["template"].startswith("{%- for message in messages -%}")
    whole = "<|im_start|>user\na<|im_end|>\n"
    assert texts == [{"text": whole + "<|im_start|>assistant\n"}, {"text": whole}]
    source = "{{ messages[0].content ~ eos_token }}\n🦆"
    assert run([start(source), request()])[1] == [{"template": source}, {"text": "a</s>\n🦆"}]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no\n way') }}", "no way"),
        ("{{ messages[0].content.x.y }}", "'str object' has no attribute 'x'"),
        ("{{ 1 + 'a' }}", "TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
        ("{{ 'ab' * 51 }}", "the text has more than 100 bytes"),
        ("{% for i in range(99999) %}{{ i }}{% endfor %}", "the text has more than 100 bytes"),
        ("{{ ('a' * 1000000000) | length }}", "needs more than 512 MiB"),
        ("{{ messages.__class__.__mro__ }}", "is unsafe"),
        ("{{ '\\ud800' }}", "unpaired surrogate"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_rejected_messages(template: str, message: str) -> None:
    """The process answers the next line."""
    source = "{% if messages[0].content == 'b' %}fine{% else %}" + template + "{% endif %}"
    status, answers = run([start(source), request(), request([{"role": "user", "content": "b"}])])
    assert status == 0 and message in answers[1]["error"] and "\n" not in answers[1]["error"]
    assert answers[2] == {"text": "fine"}


def test_rejected_templates() -> None:
    assert "line 1: " in run([start("{% for %}")])[1][0]["error"]
    error = run([{"name": "chatm", "special_tokens": {}, "max_bytes": 1}])[1][0]["error"]
    assert error == "found 'chatm', expected a file or one of chatml, llama3, deepseek, plain"


def test_endless_template_ends_the_process() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    status, answers = run([start(endless), request()], timeout=120)
    assert status < 0 and len(answers) == 1


def test_system_calls_are_restricted() -> None:
    """Code that leaves Jinja's sandbox opens no file, starts no process and has no network."""
    program = """
import os, socket, sys
from hero_moe.system_calls import restrict_system_calls
end = os.dup(1)
restrict_system_calls()
attempts = [lambda: open("/etc/passwd"), lambda: open("/tmp/x", "w"), os.fork, socket.socket,
            lambda: os.kill(os.getppid(), 0), lambda: os.listdir("/"), lambda: os.execv("/bin/sh", ["sh"])]
for attempt in attempts:
    try:
        attempt()
        os.write(end, b"allowed ")
    except PermissionError:
        os.write(end, b"denied ")
os.write(end, str(sum(range(10))).encode())
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "denied " * 7 + "45"
