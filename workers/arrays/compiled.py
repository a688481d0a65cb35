"""How a kernel is compiled: at its first call, without the GIL, and kept on disk where that can be
written.

A kernel is plain Python over arrays, so it can be read, and run uncompiled, as what it says.
Integers are 64 bits wide and wrap; a division by zero raises. Those that read bytes from outside
check every index: a hostile event is a reject, never a wrong memory access.

What is compiled is kept in a directory whose name says what it was compiled from: the text of all
kernels (numba alone would look at the file of the outermost function only, though kernels of other
files are compiled into it), and the versions and the processor it was compiled for. A directory
that is complete may be read-only, as in an image.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast


@contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Make modules that are not loaded seem not installed, to what is imported meanwhile."""
    modules = cast(dict[str, object], sys.modules)
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: "there is none"
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


# At a first call numba imports, where they are installed, SciPy's linear algebra to multiply
# matrices, and cffi with a parser of C to call functions of C: 0.25 s, and no kernel does either.
with _absent("scipy.linalg", "cffi"):
    import llvmlite.binding
    import numba
    import numba.core.typing.cffi_utils
    import numba.np.arraymath
    from numba.core.caching import UserProvidedCacheLocator

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent
# In every file that has kernels.
_IMPORT = b"from workers.arrays.compiled import"
# In it when every kernel was compiled that counting needs.
_COMPLETE = "complete"
# Directories of other versions that are left in a place, 4 MB each: the oldest go.
_OTHERS_KEPT = 7


def _name() -> str:
    """Return the name of the directory for this text of the kernels, on this machine."""
    config = cast(Any, numba.config)
    target = (
        config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        config.CPU_FEATURES,
        sys.version_info[:2],
    )
    text = blake2b(repr((numba.__version__, llvmlite.__version__, *target)).encode(), digest_size=8)
    for path in sorted(_PACKAGE.rglob("*.py")):
        code = path.read_bytes()
        if _IMPORT in code or path == Path(__file__):
            text.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + code)
    return f"kernels-{text.hexdigest()}"


def _kept() -> Path | None:
    """Return the directory to keep compiled kernels in; None where nothing can be written."""
    name = _name()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = (_HERE / "__pycache__", Path(home) / "quietcount")
    for place in places:
        if (place / name / _COMPLETE).exists():
            return place / name
    for place in places:
        with suppress(OSError):
            (place / name).mkdir(parents=True, exist_ok=True)
            if os.access(place / name, os.W_OK):
                # Other versions of Python, or of Quietcount, may be in use beside this one.
                others = [path for path in place.glob("kernels-*") if path.name != name]
                others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
                for old in others[_OTHERS_KEPT:]:
                    shutil.rmtree(old, ignore_errors=True)
                return place / name
    return None


class KeptKernels(UserProvidedCacheLocator):
    """Where numba finds what is kept, also if it cannot be written."""

    def ensure_cache_path(self) -> None:
        if not complete():
            cast(Any, super()).ensure_cache_path()


def _count_from_the_front() -> None:
    """Have an index that is not checked mean the place that it says.

    numba looks at each whether it is below 0, and then counts from the end, as Python does. No
    kernel does that; with 40 arrays, whose lengths must be at hand for it, this is a fifth of the
    time of `views.see`. An index that is checked still means what it does in Python.
    """
    arrays = cast(Any, numba.np.arrayobj)
    from_either_end = arrays.fix_integer_index

    def place(context: Any, builder: Any, kind: Any, index: Any, length: Any) -> Any:
        if context.enable_boundscheck:
            return from_either_end(context, builder, kind, index, length)
        return context.cast(
            builder, index, kind, numba.types.intp if kind.signed else numba.types.uintp
        )

    arrays.fix_integer_index = place


if hasattr(numba.np.arrayobj, "fix_integer_index"):
    _count_from_the_front()

_DIRECTORY = _kept()
if _DIRECTORY is not None:
    cast(Any, numba.config).CACHE_DIR = str(_DIRECTORY)
    cast(Any, numba.config).CACHE_LOCATOR_CLASSES = f"{__name__}.{KeptKernels.__name__}"


def kept() -> bool:
    """Tell whether what is compiled can be kept for other processes."""
    return _DIRECTORY is not None and os.access(_DIRECTORY, os.W_OK)


def complete() -> bool:
    """Tell whether everything that counting needs is compiled and kept."""
    return _DIRECTORY is not None and (_DIRECTORY / _COMPLETE).exists()


def mark_complete() -> None:
    """Note that everything that counting needs was compiled in this process."""
    if _DIRECTORY is not None and kept():
        (_DIRECTORY / _COMPLETE).touch()


def kernel(function: F) -> F:
    """Compile a loop whose indices follow from its arrays' lengths; it makes no arrays."""
    return _kept_kernel(function, boundscheck=False)


def kernel_with_arrays(function: F) -> F:
    """Compile the same of a loop that makes arrays of its own."""
    return _kept_kernel(function, boundscheck=False, counts_references=True)


def kernel_part(function: F) -> F:
    """Compile what only kernels call: nothing is made for Python to call it by."""
    return _part(function, boundscheck=False)


def kernel_in_place(function: F) -> F:
    """Compile the same so that it is put in the place of each call."""
    return _part(function, boundscheck=False, in_place=True)


def reads_outside(function: F) -> F:
    """Compile a loop over bytes from outside: an index beyond an array raises IndexError."""
    return _kept_kernel(function, boundscheck=True)


def reads_outside_with_arrays(function: F) -> F:
    """Compile the same of a loop that makes arrays of its own."""
    return _kept_kernel(function, boundscheck=True, counts_references=True)


def part_reads_outside(function: F) -> F:
    """Compile what only kernels that read from outside call."""
    return _part(function, boundscheck=True)


def reads_outside_in_place(function: F) -> F:
    """Compile the same so that it is put in the place of each call: a call with two arrays takes
    as long as reading a short string."""
    return _part(function, boundscheck=True, in_place=True)


def _options(
    *, boundscheck: bool, counts_references: bool = False, in_place: bool = False
) -> dict[str, Any]:
    """Return how numba is to compile: without counting references to arrays, where none is made.

    Whoever calls a kernel holds its arguments. Counting them all the same takes 10 ns for each call
    within a kernel: 580 of the 720 ns that the scanner took for an event.
    """
    return {
        "nogil": True,
        "boundscheck": boundscheck,
        "_nrt": counts_references,
        "forceinline": in_place,
        # What C could call: nobody does.
        "no_cfunc_wrapper": True,
    }


def _kept_kernel(function: F, *, part: bool = False, **how: bool) -> F:
    options = _options(**how) | {"no_cpython_wrapper": part}
    made = numba.njit(cache=_DIRECTORY is not None, **options)(function)
    save = made._cache.save_overload

    def save_if_possible(*what: object) -> None:
        # A full disk, or an image that cannot be written, costs the copy and nothing else.
        with suppress(OSError):
            save(*what)

    made._cache.save_overload = save_if_possible
    return cast(F, made)


def _part(function: F, **how: bool) -> F:
    """Compile without what Python calls a kernel by: a fifth of the time that compiling takes.

    Where Python calls it all the same, as tests do, it is compiled once more, and that is not kept.
    """
    made = cast(Any, _kept_kernel(function, part=True, **how))
    numbas_own = made.add_overload

    def add(result: Any) -> None:
        # numba's own would also note it for calls from Python, which would then call nothing.
        made.overloads[tuple(result.signature.args)] = result

    for_python: Any = numba.njit(**_options(**how))(function)

    def compile_for_python(*arguments: object) -> object:
        known = len(for_python.overloads)
        entry = for_python._compile_for_args(*arguments)
        # Each once: of two that are the same numba would call neither.
        for result in list(for_python.overloads.values())[known:]:
            numbas_own(result)
        return entry

    made.add_overload, made._compile_for_args = add, compile_for_python
    return cast(F, made)
