"""Kernels are compiled ahead, cached under all kernels' source, and never reused for another."""

import ast
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import event
from numba.core.caching import IndexDataCacheFile, UserProvidedCacheLocator
from numba.core.compiler import Flags

from tests import ROOT
from tests.arrays.test_imports import python
from workers.arrays import compiled, compiler
from workers.arrays.texts import readonly_contiguous
from workers.commands.compiling import _fast_compiler

Patch = pytest.MonkeyPatch
COUNTED = """
import sys
from numba.core import event
from workers.commands.compiling import compile_kernels
compile_kernels()
from workers.cli import execute
for path in sys.argv[1:]:
    with event.install_recorder("numba:compile") as recorder:
        code = execute(["replay", "-c", path, "--input", "events.jsonl", "--snapshots", path + ".jsonl"])
    late = sorted({str(e.data["dispatcher"].py_func.__qualname__) for _, e in recorder.buffer if e.is_start})
    if late or code:
        sys.exit(f"{path}: exit status {code}, compiled late: {late}")
"""


WITHOUT = """
import sys
import numpy as np
from workers.arrays.texts import Texts
assert list(Texts.of([b"a", b"b"]).take(np.array([1]))) == [b"b"]
found = sorted(name for name in sys.modules if name.startswith("scipy.linalg"))
import scipy.linalg
sys.exit(f"imported: {found}" if found else 0)
"""


@pytest.mark.slow
def test_a_kernel_needs_no_blas_and_whoever_wants_one_finds_it() -> None:
    """numba imports an installed SciPy at the first call, half as long as numba's own import."""
    done = python(WITHOUT)
    assert done.returncode == 0, done.stderr


def test_a_part_that_python_calls_is_compiled_for_that_once() -> None:
    """Nothing is prebuilt for such calls; a type's result is found once, not on every call."""

    @compiled.kernel_part
    def last(values: Any) -> Any:
        return values[len(values) - 1]

    @compiled.kernel
    def last_but(values: Any, less: Any) -> Any:
        return last(values) - less

    whole = np.array([3, 8])
    halves = np.array([0.25, 0.5])
    assert last_but(whole, 2) == 6
    assert (last(whole), last(halves), last(readonly_contiguous(whole))) == (8, 0.5, 8)
    with event.install_recorder("numba:compiler_lock") as recorder:
        assert (last(whole), last(halves), last(readonly_contiguous(whole))) == (
            8,
            0.5,
            8,
        )
    assert not recorder.buffer
    assert last_but(halves, 2) == -1.5


def kernel_nodes(path: Path) -> Iterator[ast.AST]:
    functions = [
        (name, each) for name, each in vars(compiled).items() if callable(each)
    ]
    decorators = {
        n for n, each in functions if "function" in getattr(each, "__annotations__", ())
    }
    for node in ast.walk(ast.parse(path.read_text())):
        used = {getattr(each, "id", "") for each in getattr(node, "decorator_list", ())}
        if isinstance(node, ast.FunctionDef) and used & decorators:
            yield from ast.walk(node)


@pytest.mark.slow
def test_no_kernel_counts_from_the_end_of_an_array() -> None:
    """Disabling numba's wraparound makes a negative index read before the array."""
    found = []
    for path in sorted((ROOT / "workers").rglob("*.py")):
        for node in kernel_nodes(path):
            if isinstance(node, ast.Subscript):
                indices = (
                    node.slice.elts
                    if isinstance(node.slice, ast.Tuple)
                    else [node.slice]
                )
                signs = [
                    index.op for index in indices if isinstance(index, ast.UnaryOp)
                ]
                if any(isinstance(sign, ast.USub) for sign in signs):
                    found.append(f"{path.name}:{node.lineno}")
    assert not found


def test_an_index_below_0_is_what_it_is_in_python_where_it_is_checked() -> None:
    """Byte readers that are compared with plain Python must agree with it here, too."""

    @compiled.checked_kernel
    def at(values: Any, index: int) -> Any:
        return values[index]

    values = np.array([3, 8, 5])
    assert [at(values, index) for index in range(-3, 3)] == [3, 8, 5, 3, 8, 5]
    for index in (-4, 3):
        with pytest.raises(IndexError):
            at(values, index)


def test_flags_are_compared_by_the_values_that_numba_says() -> None:
    """Functions with other flags must differ, and numba's comparison is restored afterwards."""
    flags: Any = Flags
    own = flags.values
    plain = flags()
    changed = flags()
    said = flags()
    changed.boundscheck = True
    said.boundscheck = plain.boundscheck
    wanted = [each.values() for each in (plain, changed, said)]
    with _fast_compiler():
        assert flags.values is not own
        assert [each.values() for each in (plain, changed, said)] == wanted
        assert (plain == said, plain == changed) == (True, False)
    assert flags.values is own


@pytest.mark.slow
def test_nothing_is_compiled_once_counting_has_begun(tmp_path: Path) -> None:
    """A late compilation stops a shard for seconds in its first batch."""
    (tmp_path / "noise.key").write_bytes(bytes(32))
    (tmp_path / "noise.key").chmod(0o600)
    examples = "mechanisms/unk_base", "mechanisms/misra_gries", "mechanisms/two_level"
    paths = [
        Path(shutil.copy(ROOT / "examples" / f"{example}.toml", tmp_path))
        for example in (*examples, "users", "sums")
    ]
    users = b'"customer": "u%d", "user": "u%d", "paid": 7.25}\n'
    line = b'{"shop": "s%d", "products": ["a", "b%d"], "ts": %d, ' + users
    begin = 1_800_000_000_000
    events = [
        line % (i % 2 + 1, i % 90, begin + 100 * i, i % 40, i % 40)
        for i in range(3_000)
    ]
    (tmp_path / "events.jsonl").write_bytes(b"".join(events))
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}
    names = [path.name for path in paths]
    done = python(COUNTED, *names, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / f"{name}.jsonl").stat().st_size > 10_000 for name in names)


def test_every_kernels_text_names_the_directory(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """numba checks only the outermost function's file; inner loops elsewhere must count too."""
    for path in Path(compiler.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiler, "_PACKAGE", tmp_path)
    before = compiler._cache_name()
    assert compiler._cache_name() == before
    text = tmp_path / "tallies.py"
    text.write_text(text.read_text().replace("min(", "max(", 1))
    assert compiler._cache_name() != before


def test_some_other_versions_directories_stay(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """Two interpreters on one checkout must not evict each other's cache at every start."""
    monkeypatch.setattr(compiler, "_HERE", tmp_path)
    others = [tmp_path / "__pycache__" / f"kernels-{number}" for number in range(10)]
    for number, path in enumerate(others):
        path.mkdir(parents=True)
        os.utime(path, (number, number))
    own = compiler._cache_directory()
    assert own is not None and own.name == compiler._cache_name()
    os.utime(own, (0, 0))  # the oldest of all, and it stays all the same
    assert compiler._cache_directory() == own
    kept = {path.name for path in own.parent.iterdir()}
    assert kept == {own.name, *(path.name for path in others[3:])}


def test_a_complete_directory_need_not_be_writable(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """In an image root owns the cache, and the worker may not write."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(compiler, "_DIRECTORY", tmp_path / "kept")
    found: Any = compiler.KernelCacheLocator.from_function
    py_func = compiler.all_compiled
    (tmp_path / "kept").write_text("")  # a file: nothing can be made below it
    assert found(py_func, compiler.__file__) is None
    (tmp_path / "kept").unlink()
    (tmp_path / "kept" / "arrays").mkdir(parents=True)
    compiler.mark_all_compiled()
    assert compiler.all_compiled()
    written: Any = UserProvidedCacheLocator
    monkeypatch.setattr(written, "ensure_cache_path", pytest.fail)
    assert found(py_func, compiler.__file__) is not None


def test_kernels_of_an_extra_that_came_later_are_kept_too(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """`make demo` compiled without the formats; then each start compiled these, for 10 s."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_DIRECTORY", tmp_path)
    compiler.mark_all_compiled()
    found: Any = compiler.KernelCacheLocator.from_function
    assert found(compiler.all_compiled, compiler.__file__) is not None
    assert (tmp_path / "arrays").is_dir()


_CALL = """
import numpy as np
from workers.arrays import compiler
from workers.arrays.number_blocks import mark_blocks
rows = np.zeros(1, dtype=np.int64)
rows.flags.writeable = False
mark_blocks(rows, 10, np.zeros(1, dtype=np.bool_))
print(compiler._PACKAGE.parent, sum(mark_blocks.dispatcher.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_a_moved_installation_has_its_kernels(tmp_path: Path) -> None:
    """An image copies what another stage compiled, to another place, and may not write there."""

    def misses(place: Path) -> int:
        call = [sys.executable, "-P", "-c", _CALL]
        paths = os.environ | {"PYTHONPATH": str(place)}
        done = subprocess.run(
            call, cwd=place, env=paths, check=True, capture_output=True, text=True
        )
        found, number = done.stdout.split()
        assert Path(found) == place
        return int(number)

    misses(compiler._PACKAGE.parent)
    shutil.copytree(compiler._PACKAGE, tmp_path / "workers")
    kept = tmp_path / "workers" / "arrays" / "__pycache__" / compiler._cache_name()
    (kept / "complete").touch()
    assert misses(tmp_path) == 0


def test_what_cannot_be_kept_costs_the_copy_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk must not stop a worker that only wanted to cache a loop."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", full)

    @compiled.kernel
    def twice(number: int) -> int:
        return 2 * number

    assert twice(21) == 42
