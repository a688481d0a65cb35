"""The wheel: the same bytes from every checkout of a commit, and enough to run without one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests import ROOT

pytestmark = pytest.mark.slow


def run(*command: str, at: Path, path: Path | None = None) -> str:
    given = {"SOURCE_DATE_EPOCH": "1795651200"} | (
        {} if path is None else {"PYTHONPATH": str(path)}
    )
    return subprocess.run(
        [sys.executable, *command],
        cwd=at,
        env=os.environ | given,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def built(tree: Path) -> Path:
    run("-m", "hatchling", "build", "-t", "wheel", at=tree)
    [wheel] = (tree / "dist").iterdir()
    return wheel


def test_the_wheel_is_reproducible_and_runs_without_a_checkout(tmp_path: Path) -> None:
    wheels = []
    for copy in ("one", "two"):  # the files of the second are newer
        tree = tmp_path / copy
        shutil.copytree(
            ROOT / "workers",
            tree / "workers",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for file in ("LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(ROOT / file, tree)
        wheels.append(built(tree))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with ZipFile(wheels[0]) as wheel:
        names = {name for name in wheel.namelist() if name.startswith("workers/")}
        wheel.extractall(tmp_path / "installed")
    tree = tmp_path / "one"
    assert names == {
        str(p.relative_to(tree)) for p in (tree / "workers").rglob("*") if p.is_file()
    }
    for settings in (ROOT / "examples/orders").glob("*.toml"):
        shutil.copy(settings, tmp_path)
    at = tmp_path
    installed = tmp_path / "installed"
    where = run("-c", "import workers; print(workers.__file__)", at=at, path=installed)
    assert Path(where.strip()).is_relative_to(installed)
    assert "epsilon" in run(
        "-m", "workers.cli", "plan", "-c", "orders.toml", at=at, path=installed
    )
