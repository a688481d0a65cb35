"""Commands that do not count start without the compiler, which takes half a second and 100 MB."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

RUN = """
import sys
from workers.cli import execute
code = max(execute(line.split()) for line in sys.argv[1:])
found = sorted(name for name in sys.modules if name == "numba" or name == "workers.arrays.compiler")
sys.exit(f"imported: {found}" if found else code)
"""
CALL = """
import numpy as np
from workers.arrays.texts import Texts
Texts.of([b"a"]).take(np.array([0]))
"""
IMPORT = """
import sys
import workers.dashboard.server, workers.commands.topics, workers.commands.budget
import workers.client, workers.commands.export.export
found = sorted(name for name in sys.modules if name == "numba" or name == "workers.arrays.compiler")
sys.exit(f"imported: {found}" if found else 0)
"""


Done = subprocess.CompletedProcess[str]


def python(
    code: str, *arguments: str, cwd: Path = ROOT, timeout: int = 120, **more: Any
) -> Done:
    command = [sys.executable, "-c", code, *arguments]
    more |= {"cwd": cwd, "timeout": timeout}
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


@pytest.mark.slow
def test_a_plan_is_made_without_the_compiler(tmp_path: Path) -> None:
    """It builds every mechanism, and steps none."""
    (tmp_path / "noise.key").write_text("00" * 32 + "\n")
    (tmp_path / "noise.key").chmod(0o600)
    names = [f"{name}.toml" for name in ("unk_base", "misra_gries_pure", "meta")]
    for name in names:
        shutil.copy(ROOT / "examples" / "mechanisms" / name, tmp_path)
    done = python(RUN, *(f"plan -c {tmp_path / name}" for name in names))
    assert done.returncode == 0, done.stderr


def test_a_key_is_made_without_the_compiler(tmp_path: Path) -> None:
    done = python(RUN, f"key new {tmp_path / 'noise.key'}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_needs_a_broker_does_not_import_it_either() -> None:
    """`topics`, `dashboard`, `budget` and `export` count nothing."""
    done = python(IMPORT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_check_sees_a_kernel_that_is_called() -> None:
    done = python(CALL + RUN, "--version")
    assert "imported: ['numba'" in done.stderr
