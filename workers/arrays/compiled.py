"""Kernel compilation: at the first call, without the GIL, cached on disk where writable.

A kernel is plain Python over arrays, and runs uncompiled as written. Integers are 64 bits wide and
wrap; a division by zero raises. Kernels that read bytes from outside check every index: a hostile
event is a reject, never a wrong memory access.

The cache directory's name hashes the text of all kernels, the versions and the processor; numba
alone would check only the file of the outermost function. A complete one may be
read-only, as in an image.
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
    """Make modules that are not loaded appear uninstalled to imports in this context."""
    modules = cast(dict[str, object], sys.modules)
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None: "there is none"
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


# At a first call numba imports, where installed, SciPy's linear algebra for matrix products, and
# cffi with a C parser for C calls: 0.25 s, and no kernel needs either.
with _absent("scipy.linalg", "cffi"):
    import llvmlite.binding
    import numba
    import numba.core.typing.cffi_utils
    import numba.np.arraymath
    from numba.core.caching import UserProvidedCacheLocator

F = TypeVar("F", bound=Callable[..., Any])

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent
# Present in every file that has kernels.
_IMPORT = b"from workers.arrays.compiled import"
# Marks a directory that has every kernel needed for counting.
_COMPLETE = "complete"
# Directories of other versions to keep, 4 MB each; the oldest are removed.
_OTHERS_KEPT = 7


def _name() -> str:
    config = cast(Any, numba.config)
    processor = config.CPU_NAME or llvmlite.binding.get_host_cpu_name(), config.CPU_FEATURES
    versions = numba.__version__, llvmlite.__version__
    target = repr((*versions, *processor, sys.version_info[:2]))
    text = blake2b(target.encode(), digest_size=8)
    for path in sorted(_PACKAGE.rglob("*.py")):
        code = path.read_bytes()
        if _IMPORT in code or path == Path(__file__):
            text.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + code)
    return f"kernels-{text.hexdigest()}"


def _kept() -> Path | None:
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
    """numba's cache locator, for read-only directories too."""

    def ensure_cache_path(self) -> None:
        if not all_compiled():
            cast(Any, super()).ensure_cache_path()


def _count_from_the_front() -> None:
    """Disable negative indices in unchecked kernels, none of which uses them.

    numba's test for them needs the lengths of 40 arrays: a fifth of the time of `views.see`.
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


def can_cache() -> bool:
    return _DIRECTORY is not None and os.access(_DIRECTORY, os.W_OK)


def all_compiled() -> bool:
    """Return whether every kernel needed for counting is compiled and cached."""
    return _DIRECTORY is not None and (_DIRECTORY / _COMPLETE).exists()


def mark_all_compiled() -> None:
    if _DIRECTORY is not None and can_cache():
        (_DIRECTORY / _COMPLETE).touch()


def kernel(function: F) -> F:
    """Compile a loop with indices that follow from its arrays' lengths; it makes no arrays."""
    return _kept_kernel(function)


def kernel_with_arrays(function: F) -> F:
    """Compile like `kernel` a loop that makes arrays."""
    return _kept_kernel(function, counts_references=True)


def kernel_part(function: F) -> F:
    """Compile a function that only kernels call, without a Python entry point."""
    return _part(function)


def kernel_inline(function: F) -> F:
    """Compile like `kernel_part`, inlined at every call."""
    return _part(function, in_place=True)


def checked_kernel(function: F) -> F:
    """Compile a loop over bytes from outside: an index beyond an array raises IndexError."""
    return _kept_kernel(function, checked=True)


def checked_kernel_with_arrays(function: F) -> F:
    return _kept_kernel(function, checked=True, counts_references=True)


def checked_part(function: F) -> F:
    """Compile a function called only by kernels that read from outside."""
    return _part(function, checked=True)


def checked_inline(function: F) -> F:
    """Compile like `checked_part`, inlined: a call costs as much as a short string."""
    return _part(function, checked=True, in_place=True)


def _options(
    *, checked: bool = False, counts_references: bool = False, in_place: bool = False
) -> dict[str, Any]:
    # The caller of a kernel holds its arguments. Counting references to them anyway takes 10 ns for
    # each call within a kernel: 580 of the 720 ns that the scanner took for an event.
    return {
        "nogil": True,
        "boundscheck": checked,
        "_nrt": counts_references,
        "forceinline": in_place,
        "no_cfunc_wrapper": True,  # the unused C entry point
    }


def _kept_kernel(function: F, *, part: bool = False, **how: bool) -> F:
    options = _options(**how) | {"no_cpython_wrapper": part}
    made = numba.njit(cache=_DIRECTORY is not None, **options)(function)
    save = made._cache.save_overload

    def save_if_possible(*what: object) -> None:
        # A full disk or a read-only image costs only the cached copy.
        with suppress(OSError):
            save(*what)

    made._cache.save_overload = save_if_possible
    return cast(F, made)


def _part(function: F, **how: bool) -> F:
    """Compile without the Python entry point, which takes a fifth of the compile time.

    If Python calls it anyway, as tests do, it is compiled again, uncached.
    """
    made = cast(Any, _kept_kernel(function, part=True, **how))
    numbas_own = made.add_overload

    def add(result: Any) -> None:
        # numba's own method would also register it for Python calls, which would then call nothing.
        made.overloads[tuple(result.signature.args)] = result

    for_python: Any = numba.njit(**_options(**how))(function)

    def compile_for_python(*arguments: object) -> object:
        known = len(for_python.overloads)
        entry = for_python._compile_for_args(*arguments)
        # Once each: of two equal ones numba would call neither.
        for result in list(for_python.overloads.values())[known:]:
            numbas_own(result)
        return entry

    made.add_overload, made._compile_for_args = add, compile_for_python
    return cast(F, made)
