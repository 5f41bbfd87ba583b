"""--help of the program and of every subcommand."""

from __future__ import annotations

import re

import pytest

from program import configuration_keys, hero, run_hero

OPTIONS: dict[str, list[str]] = {
    "": ["version"],
    "data": [],
    "data tokenizer": "input text-key skip-invalid workers vocab-size out seed sample-bytes".split(),
    "data tokenize": "input text-key skip-invalid workers tokenizer out valid-fraction seed overwrite".split(),
    "data info": [],
    "data show": "config data json".split(),
    "train": "config data run resume data-changed init-from branch".split(),
    "eval": "data batch sequence device".split(),
    "generate": "prompt max-tokens temperature top-k top-p seed tokenizer no-cache device".split(),
    "chat": "system max-tokens temperature top-k top-p seed chat-template tokenizer device".split(),
    "logits": "tokens out routing gradients dtype device".split(),
    "diff": "text tokens tolerance dtype device".split(),
    "analyze": "out data baseline tokens batch sequence pair runs numbers-only device".split(),
    "export": "dtype max-shard-size".split(),
    "cost": "config data-ranks pipeline-stages expert-ranks in-flight rate bandwidth measure json".split(),
    "plan": "config cluster gpus gpus-per-node teraflops efficiency memory-gib reserved-gib bandwidth-memory-gbs "
    "bandwidth-node-gbs bandwidth-network-gbs latency-node-us latency-network-us top own-layout hours "
    "hero-hours tokens draw draw-layout json".split(),
    "bench": [],
    "bench cost-table": "config steps warmup forward rounds layers train-steps json".split(),
    "bench step": "config steps warmup forward".split(),
    "bench gemm": ["json"],
    "serve": "host port api-key allow-unauthenticated allow-host model-name tokenizer chat-template device dtype "
    "max-tokens max-batch max-queue max-body max-response max-request-tokens max-pending-response "
    "max-pending-tokens timeout drain".split(),
    "study": "variants seeds data held-out out jobs threads report-only".split(),
    "report": ["out"],
}
# Options that take a value and have no default.
WITHOUT_DEFAULT = {
    "train --config",
    "train --data",
    "train --init-from",
    "train --branch",
    "analyze --data",
    "analyze --baseline",
    "analyze --pair",
    "analyze --runs",
    "analyze --numbers-only",
    "generate --tokenizer",
    "chat --system",
    "chat --chat-template",
    "chat --tokenizer",
    "cost --config",
    "plan --config",
    "plan --cluster",
    "plan --gpus",
    "plan --gpus-per-node",
    "plan --teraflops",
    "plan --memory-gib",
    "plan --bandwidth-node-gbs",
    "plan --bandwidth-network-gbs",
    "plan --draw",
    "plan --draw-layout",
    "bench cost-table --config",
    "bench step --config",
    "diff --text",
    "diff --tokens",
    "serve --allow-host",
    "serve --api-key",
    "serve --model-name",
    "serve --tokenizer",
    "serve --chat-template",
    "serve --dtype",
    "study --data",
    "study --held-out",
    "data show --config",
    "data show --data",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help(command: str) -> None:
    result = run_hero(*command.split(), "--help")
    assert result.stderr == ""
    assert "-h,--help" in result.stdout and "Usage:" in result.stdout
    assert [line for line in result.stdout.splitlines() if len(line) > 100] == []
    own = result.stdout.split("\nConfiguration keys")[0]
    shown = {name: rest for name, rest in re.findall(r"^  (?:-h,)?--([\w-]+)(.*)$", own, re.MULTILINE)}
    assert set(shown) == {"help", *OPTIONS[command]}
    for name, rest in shown.items():
        takes_value = re.match(r" [A-Z]+\b", rest)
        if takes_value and "REQUIRED" not in rest and f"{command} --{name}" not in WITHOUT_DEFAULT:
            assert re.match(r" \S.*=\S+", rest), f"--{name}: no default in {rest!r}"


@pytest.mark.parametrize("command", ["", "bench", "data"])
def test_subcommands_are_listed(command: str) -> None:
    inner = {name.split()[-1] for name in OPTIONS if name and " ".join(name.split()[:-1]) == command}
    listed = run_hero(*command.split(), "--help").stdout.split("Subcommands:\n")[1].split("\n\n")[0]
    assert set(re.findall(r"^  (\S+)", listed, re.MULTILINE)) == inner


def test_configuration_keys_have_type_default_and_help() -> None:
    defaults = {key: default for key, (_, default, _, _) in configuration_keys().items()}
    assert len(defaults) > 60
    # Defaults that users rely on: a baseline router, else the paper's router; bf16; dropless.
    assert defaults["router.kind"] == '"baseline"'
    assert defaults["router.detach"] == "true" and defaults["router.scale"] == "true"
    assert defaults["router.window"] == "0" and defaults["router.history"] == '"stage"'
    assert defaults["train.dtype"] == '"bf16"' and defaults["router.capacity_factor"] == "0.0"


def test_numbers_have_bounds() -> None:
    for key, (kind, _, _, bounds) in configuration_keys().items():
        numeric = re.fullmatch(r"(each )?>=? -?[\d.e-]+(, < [\d.e-]+)?", bounds)
        assert bool(numeric) == (kind in ("integer", "integers", "float")), f"{key}: {bounds}"


def test_exit_statuses_are_explained() -> None:
    assert "Exit status: 0; 2 for" in run_hero("--help").stdout


def test_unknown_flags() -> None:
    result = hero("-v")
    assert result.returncode == 2 and result.stdout == ""


def test_version() -> None:
    assert re.fullmatch(
        r"hero \d+\.\d+\.\d+, torch \S+, libhero.so [0-9a-f]{12}\n", run_hero("--version").stdout
    )
