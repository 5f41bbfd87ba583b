"""The package: versions agree, and (long) a wheel runs outside the checkout."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from program import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = PROJECT["build-system"]["requires"]
OPTIONS = ["--no-build-isolation", "--no-deps"]


def test_versions_agree() -> None:
    rule = PROJECT["tool"]["scikit-build"]["metadata"]["version"]
    assert "version" in PROJECT["project"]["dynamic"] and rule["input"] == "CMakeLists.txt"
    found = re.findall(rule["regex"], (ROOT / "CMakeLists.txt").read_text())
    assert len(found) == 1 and re.fullmatch(r"\d+\.\d+\.\d+", found[0])
    torch = re.search(r"HERO_TORCH_VERSION ([\d.]+)", (ROOT / "cmake" / "torch.cmake").read_text())[1]
    assert PROJECT["project"]["dependencies"] == [f"torch=={torch}"]
    assert f"torch=={torch}" in BUILD
    lines = (ROOT / "requirements-build.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == BUILD


def pins(name: str) -> dict[str, list[str]]:
    """Of each package in a requirements file, its version and hashes."""
    lines = [line.strip(" \\") for line in (ROOT / name).read_text().splitlines() if "# " not in line]
    starts = [i for i, line in enumerate(lines) if "==" in line] + [len(lines)]
    return {lines[a].split("==")[0]: lines[a:b] for a, b in itertools.pairwise(starts)}


def test_the_build_dependencies_have_hashes() -> None:
    """As the documented commands expect: the same wheels as in .venv, and all that they need."""
    build, every = pins("requirements-build.txt"), pins("requirements.txt")
    assert {build[requirement.split("==")[0]][0] for requirement in BUILD} == set(BUILD)
    for name, pin in build.items():
        assert pin == every[name] and len(pin) > 1
        needed = [Requirement(text) for text in importlib.metadata.requires(name) or []]
        needed = [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
        assert {canonicalize_name(r.name) for r in needed} <= set(build)
    commands = (ROOT / "docs" / "how-to" / "pytorch.md").read_text().splitlines()
    assert "pip install --require-hashes --no-deps -r requirements-build.txt" in commands
    assert f"pip install {' '.join(OPTIONS)} ." in commands


def test_the_package_is_typed_and_every_public_name_resolves() -> None:
    import hero_moe

    assert (ROOT / "python" / "hero_moe" / "py.typed").exists()
    assert {name: getattr(hero_moe, name).__module__ for name in hero_moe.__all__} == {
        name: f"hero_moe.{home}" for name, home in hero_moe._MODULES.items()
    }
    with pytest.raises(AttributeError, match="no attribute 'router_'"):
        _ = hero_moe.router_


@pytest.mark.long
def test_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    settings = f"--config-settings=build-dir={tmp_path}/build"
    subprocess.run([*pip, "wheel", *OPTIONS, settings, "-w", tmp_path, ROOT], check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"hero_moe-[\d.]+-py3-none-linux_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top_level = {"_hero_moe_lm_eval.py", "hero_moe_lm_eval.pth"}
    parts = {"hero_moe", wheel.name.split("-py3")[0] + ".dist-info"} | top_level
    assert {n.split("/")[0] for n in names} == parts
    assert {"hero_moe/libhero.so", "hero_moe/py.typed", "hero_moe/report/__main__.py"} | top_level <= set(
        names
    )

    site = tmp_path / "site"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    library = site / "hero_moe" / "libhero.so"
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic) == ["$ORIGIN/../torch/lib"]
    assert str(ROOT).encode() not in library.read_bytes()
    (tmp_path / "elsewhere").mkdir()
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "router_in_a_moe_layer.py", "--steps", "20"],
        cwd=tmp_path / "elsewhere",
        env=environment | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and "step   20" in result.stdout, result.stderr
