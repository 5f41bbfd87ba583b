"""Command-line syntax: keys with a space or an equals sign, configurations by name, exit statuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from program import CONFIGS, DEEPSEEK, ENVIRONMENT, PROGRAM, assert_exit_2, hero, run_hero, training


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command-line") / "run"
    run_hero(*training(folder, data, {"train.steps": 2}))
    return folder


def counted(*words: object) -> dict[str, object]:
    return json.loads(run_hero("cost", *words, "--json").stdout)


def test_keys_take_their_value_after_a_space_or_an_equals_sign() -> None:
    named = counted(
        "--config=small-qwen3", "--router.kind=hero", "--router.window=3", "--model.mlp_only_layers=[0]"
    )
    spaced = counted(
        "--router.kind",
        "hero",
        "--config",
        "small-qwen3",
        "--router.window",
        3,
        "--model.mlp_only_layers",
        "[0]",
    )
    assert spaced == named != counted("--config", "small-qwen3")


def test_rejects_key_without_value() -> None:
    for words in (["--router.window"], ["--router.window", "--router.kind=hero"]):
        assert_exit_2(hero("cost", *words), "--router.window: found no value, expected --router.window=value")


def test_configurations_by_name(tmp_path: Path) -> None:
    named = counted("--config", "small-deepseek", "hero")
    assert named == counted("--config", CONFIGS / "small-deepseek.toml", "--config", CONFIGS / "hero.toml")
    assert_exit_2(
        hero("cost", "--config", "small"), "--config: small: no such file", "small-deepseek, small-mixtral"
    )
    assert_exit_2(
        hero("cost", "--config", tmp_path / "hero"),
        f"--config: {tmp_path}/hero: no such file, expected a TOML file",
    )


def test_cost_rejects_stages_that_training_rejects() -> None:
    words = ["cost", "--config", "small-qwen3", "--pipeline-stages", 2]
    assert hero(*words).returncode == 0
    assert_exit_2(hero(*words, "--model.tie_word_embeddings=true"), "model.tie_word_embeddings: found true")
    assert_exit_2(hero(*words, "--router.kind=rmoe"), "parallel.pipeline: found 2", "whole router stages")


def test_cost_predicts_the_time_of_one_device() -> None:
    words = ["cost", "--config", "small-qwen3", "--rate", 1]
    assert "predicted time of a step" in run_hero(*words).stdout
    assert_exit_2(
        hero(*words, "--train.global_batch=8", "--data-ranks", 2),
        "--rate: found 2 devices, expected one",
        "hero plan",
    )


def test_clusters_by_name() -> None:
    words = ["plan", "--config", "paper-8b", "--top", 1, "--json", "--cluster"]
    assert run_hero(*words, "paper").stdout == run_hero(*words, CONFIGS / "clusters" / "paper.toml").stdout


def test_diff_exits_with_1_if_models_differ(run: Path, data: Path, tmp_path: Path) -> None:
    other, exported = tmp_path / "other", tmp_path / "exported"
    run_hero(*training(other, data, {"train.steps": 2, "train.seed": 7}))
    run_hero("export", run, exported)
    assert hero("diff", run, run).returncode == 0
    assert hero("diff", run, run, "--text", "x").returncode == 0
    assert hero("diff", run, exported, "--text", "x").returncode == 0
    result = hero("diff", run, other, "--text", "x")
    assert result.returncode == 1 and "first difference at: embedding" in result.stdout

    wider = tmp_path / "wider"
    run_hero(*training(wider, data, {"train.steps": 2, "model.num_experts": 16}))
    result = hero("diff", run, wider)
    assert result.returncode == 1 and "model.num_experts: 8 -> 16" in result.stdout


def test_diff_of_models_with_other_layers(data: Path, tmp_path: Path) -> None:
    """As many activations with other names: layer 0 or layer 1 is dense."""
    runs = [tmp_path / "first", tmp_path / "second"]
    unchanged = {"train.steps": 1, "optim.warmup_steps": 0, "optim.lr": 1e-30, "optim.min_lr": 0.0}
    for dense, run in enumerate(runs):
        run_hero(*training(run, data, unchanged | {"model.mlp_only_layers": [dense]}))
    result = hero("diff", *runs, "--text", "x")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].endswith(
        "the next activation is layer 0 in a and layer 0 router in b"
    )
    assert_exit_2(hero("diff", *runs, "--text", "x", "--tolerance", "nan"), "--tolerance", "nan")


def test_diff_of_models_with_other_modules(data: Path, tmp_path: Path) -> None:
    """Multi-token prediction modules: one trained, one not, and none. A text may be shorter than their reach."""
    unchanged = DEEPSEEK | {"train.steps": 1, "optim.warmup_steps": 0, "optim.lr": 1e-30, "optim.min_lr": 0.0}
    modules = {"model.num_nextn_predict_layers": 2}
    variants = {"first": modules, "second": modules, "none": {}}
    runs = {name: tmp_path / name for name in variants}
    for name, changes in variants.items():
        run_hero(*training(runs[name], data, unchanged | changes))
    exported = tmp_path / "exported"
    run_hero("export", runs["second"], exported)
    weights = load_file(exported / "model.safetensors")
    name = next(name for name in weights if name.endswith("eh_proj.weight"))
    weights[name][0, 0] += 1
    save_file(weights, exported / "model.safetensors")

    assert hero("diff", runs["first"], runs["second"], "--text", "x").returncode == 0
    result = hero("diff", runs["first"], exported, "--text", "some text")
    assert result.returncode == 1 and "first difference at: module 1 router" in result.stdout
    result = hero("diff", runs["first"], runs["none"], "--text", "some text")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].endswith(
        "the next activation is module 1 router in a and none in b"
    )


def test_generate_reports_why_it_stopped(run: Path) -> None:
    result = run_hero("generate", run, "--prompt", "\x01" * 125, "--max-tokens", 50)
    assert "model.max_position_embeddings = 128" in result.stderr and result.stderr.startswith(
        "stopped after "
    )
    assert run_hero("generate", run, "--prompt", "x", "--max-tokens", 2).stderr == ""
    assert_exit_2(hero("generate", run, "--prompt", "x", "--seed", -1), "--seed")


def assert_launcher_answers_as_the_program(words: list[str]) -> None:
    launched, program = (
        subprocess.run([path, *words], capture_output=True, text=True)
        for path in (PROGRAM, Path(PROGRAM).parent / "program" / "hero")
    )
    assert launched.returncode == program.returncode
    assert (launched.stdout, launched.stderr) == (program.stdout, program.stderr)


@pytest.mark.parametrize(
    "words",
    ["--help", "-h", "", "--version", "nothing", "--nothing", "--a.b nothing", "--version --nothing"],
)
def test_launcher_answers_as_the_program_without_loading_libtorch(words: str) -> None:
    assert_launcher_answers_as_the_program(words.split())
    loaded = subprocess.run(
        [PROGRAM, *words.split()], capture_output=True, text=True, env=ENVIRONMENT | {"LD_DEBUG": "libs"}
    ).stderr
    assert "libstdc++" in loaded and "libtorch" not in loaded


@pytest.mark.parametrize("words", ["train", "nothing train", "--help train", "--a.b train", "bench nothing"])
def test_launcher_passes_commands_on(words: str) -> None:
    assert_launcher_answers_as_the_program(words.split())


def test_every_command_of_the_help_exists() -> None:
    listed = hero("--help").stdout.split("Subcommands:\n")[1].split("\n\n")[0]
    names = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert len(names) == 15
    for name in names:
        assert hero(name, "--help").stdout.splitlines()[1].startswith(f"Usage: {name} ")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["cost", "--config", "small-qwen3"]])
def test_output_that_cannot_be_written_is_an_error(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [PROGRAM, *words], env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    # The reason is known unless the output was flushed before the end.
    reasons = ("", ": No space left on device")
    assert done.stderr in [f"hero: cannot write standard output{reason}\n" for reason in reasons]


def test_launcher_without_the_program(tmp_path: Path) -> None:
    copy = shutil.copy(PROGRAM, tmp_path / "hero")
    result = subprocess.run([copy, "train"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (
        1,
        f"hero: cannot run {tmp_path}/program/hero: No such file or directory\n",
    )
