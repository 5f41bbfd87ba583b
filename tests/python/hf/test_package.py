"""The package: versions agree, and (long) a wheel runs outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from program import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_agree() -> None:
    rule = PROJECT["tool"]["scikit-build"]["metadata"]["version"]
    assert "version" in PROJECT["project"]["dynamic"] and rule["input"] == "CMakeLists.txt"
    found = re.findall(rule["regex"], (ROOT / "CMakeLists.txt").read_text())
    assert len(found) == 1 and re.fullmatch(r"\d+\.\d+\.\d+", found[0])
    torch = re.search(r"HERO_TORCH_VERSION ([\d.]+)", (ROOT / "cmake" / "torch.cmake").read_text())[1]
    assert PROJECT["project"]["dependencies"] == [f"torch=={torch}"]
    assert f"torch=={torch}" in PROJECT["build-system"]["requires"]
    assert f"torch=={torch}" in (ROOT / "requirements.in").read_text().splitlines()


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
    options = ["--no-build-isolation", "--no-deps", settings, "-w", tmp_path]
    subprocess.run([*pip, "wheel", *options, ROOT], check=True, env=environment)
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
