"""numba, set up for our kernels; imported when one is first called (`compiled`).

The cache directory's name hashes the text of all kernels, the versions and the processor; numba
alone would check only the outermost function's file. A complete cache may be read-only. A *part*
is a function that only kernels call (`compiled`).
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast


@contextmanager
def _hide_modules(*names: str) -> Iterator[None]:
    """Make modules that are not loaded appear uninstalled to imports in this context.

    numba imports some modules only if they are installed, so hiding them saves that time.
    """
    modules = cast(dict[str, object], sys.modules)
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


# Importing them takes 0.25 s, and no kernel needs them.
with _hide_modules("scipy.linalg", "cffi"):
    import llvmlite.binding
    import numba
    import numba.core.typing.cffi_utils
    import numba.np.arraymath
    from numba.core.caching import UserProvidedCacheLocator

_HERE = Path(__file__).resolve().parent
_PACKAGE = _HERE.parent
_SETTING_UP = (Path(__file__), _HERE / "compiled.py")
# Present in every file that has kernels.
_IMPORT = b"from workers.arrays.compiled import"
# Marks a directory with every kernel needed for counting.
_COMPLETE = "complete"
# Caches of other versions to keep, 4 MB each; the oldest are removed.
_OLD_CACHES_MAX = 7


def _cache_name() -> str:
    """Return the name of the cache directory for these kernels on this machine: see the module."""
    config = cast(Any, numba.config)
    processor = (
        config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        config.CPU_FEATURES,
    )
    versions = numba.__version__, llvmlite.__version__
    target = repr((*versions, *processor, sys.version_info[:2]))
    digest = blake2b(target.encode(), digest_size=8)
    for path in sorted(_PACKAGE.rglob("*.py")):
        code = path.read_bytes()
        # Files with kernels, and those that set up numba.
        if _IMPORT in code or path in _SETTING_UP:
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + code)
    return f"kernels-{digest.hexdigest()}"


def _cache_directory() -> Path | None:
    """Return a complete cache directory, else the first that can be written; None without one."""
    name = _cache_name()
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.path.expanduser("~"), ".cache"
    )
    places = (_HERE / "__pycache__", Path(home) / "quietcount")
    for parent in places:
        if (parent / name / _COMPLETE).exists():
            return parent / name
    for parent in places:
        with suppress(OSError):
            (parent / name).mkdir(parents=True, exist_ok=True)
            if os.access(parent / name, os.W_OK):
                # Other versions of Python or Quietcount may be in use.
                others = [
                    path for path in parent.glob("kernels-*") if path.name != name
                ]
                others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
                for old in others[_OLD_CACHES_MAX:]:
                    shutil.rmtree(old, ignore_errors=True)
                return parent / name
    return None


class KernelCacheLocator(UserProvidedCacheLocator):
    """numba's cache locator, for read-only directories and moved installations too."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        # numba hashes the path: a copy of an installation, as in a second stage of an image, would
        # find a complete directory without its own kernels, and compile at every start.
        folder = Path(py_file).resolve().parent
        if folder.is_relative_to(_PACKAGE):
            return str(folder.relative_to(_PACKAGE))
        return str(cast(Any, super()).get_suitable_cache_subpath(py_file))

    def ensure_cache_path(self) -> None:
        # A complete directory may be read-only. It lacks the folder of an extra installed later.
        if not all_compiled() or not os.path.isdir(cast(Any, self).get_cache_path()):
            cast(Any, super()).ensure_cache_path()


def _forbid_negative_indices() -> None:
    """Disable negative indices in unchecked kernels, none of which uses them.

    numba's test for them loads the lengths of 40 arrays: a fifth of `project_views`' time.
    """
    arrays = cast(Any, numba.np.arrayobj)
    from_either_end = arrays.fix_integer_index

    def from_start(
        context: Any, builder: Any, kind: Any, index: Any, length: Any
    ) -> Any:
        """Compile an index as it is, where numba would add `length` to a negative one.

        Kernels with bounds checks keep numba's function. `kind` is the index's integer type.
        """
        if context.enable_boundscheck:
            return from_either_end(context, builder, kind, index, length)
        return context.cast(
            builder, index, kind, numba.types.intp if kind.signed else numba.types.uintp
        )

    arrays.fix_integer_index = from_start


if hasattr(numba.np.arrayobj, "fix_integer_index"):
    _forbid_negative_indices()

_DIRECTORY = _cache_directory()
if _DIRECTORY is not None:
    cast(Any, numba.config).CACHE_DIR = str(_DIRECTORY)
    cast(
        Any, numba.config
    ).CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCacheLocator.__name__}"


def can_cache() -> bool:
    return _DIRECTORY is not None and os.access(_DIRECTORY, os.W_OK)


def all_compiled() -> bool:
    """Return whether every kernel needed for counting is compiled and cached."""
    return _DIRECTORY is not None and (_DIRECTORY / _COMPLETE).exists()


def mark_all_compiled() -> None:
    if _DIRECTORY is not None and can_cache():
        (_DIRECTORY / _COMPLETE).touch()


def compile_function(
    function: Callable[..., Any], options: dict[str, bool], *, is_part: bool
) -> Any:
    """Return numba's dispatcher of a function; `is_part`: only kernels call it."""
    dispatcher = cast(Any, numba.njit)(
        **options, cache=_DIRECTORY is not None, no_cpython_wrapper=is_part
    )(function)
    save = dispatcher._cache.save_overload

    def save_if_possible(*what: object) -> None:
        # A full disk or a read-only image loses only the cached copy.
        with suppress(OSError):
            save(*what)

    dispatcher._cache.save_overload = save_if_possible
    if is_part:
        _compile_again_for_python(
            dispatcher, cast(Any, numba.njit)(**options)(function)
        )
    return dispatcher


def _compile_again_for_python(part: Any, for_python: Any) -> None:
    """Make a part callable from Python too, as tests call it, without a change for kernels.

    Both are numba's dispatchers of the same function. An *overload* is the function compiled for
    some argument types. Those of `part` have no Python entry point, which saves compile time in
    kernels. When Python calls, `for_python` compiles it again with an entry point, uncached.
    """
    register_for_python = part.add_overload

    def add_for_kernels(result: Any) -> None:
        """Replace numba's `add_overload`, which would also offer the overload to Python."""
        part.overloads[tuple(result.signature.args)] = result

    def compile_for_python(*arguments: object) -> object:
        """Compile for the types of these arguments; return the entry point that numba then calls.

        numba asks for this when Python passes types that are new.
        """
        known = len(for_python.overloads)
        entry = for_python._compile_for_args(*arguments)
        # Only new results: numba finds a call ambiguous where two have the same types.
        for result in list(for_python.overloads.values())[known:]:
            register_for_python(result)
        return entry

    part.add_overload = add_for_kernels
    part._compile_for_args = compile_for_python
