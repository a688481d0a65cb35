"""Kernels as plain Python."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType, ModuleType
from typing import Any

from workers.arrays import words


def uncompiled(function: Any) -> Any:
    """Return a kernel's Python function; the argument itself where the compiler is off."""
    return getattr(function, "py_func", function)


def compiled(function: Any) -> Any:
    return function


WAYS = (compiled, uncompiled)
# They need wrapping 64-bit numbers, which plain Python lacks, and stay compiled; their own test
# compares each with its definition.
IN_WORDS = (words.__name__,)


@cache
def source_of(kernel: Any) -> str:
    """Return a kernel's source without its decorator; to look for where it ends takes long."""
    return inspect.getsource(kernel.py_func).split("\n", 1)[1]


@cache
def code_of(source: str) -> CodeType:
    return compile(source, "<string>", "exec")


def plain_python(
    modules: Sequence[ModuleType], old: str = "", new: str = ""
) -> Mapping[ModuleType, dict[str, Any]]:
    """Return `modules`, in import order, as plain Python; `old` occurs once and becomes `new`."""
    made: dict[ModuleType, dict[str, Any]] = {}
    changed = 0
    for module in modules:
        namespace = dict(vars(module))
        for known in made.values():
            plain = {
                name: each for name, each in known.items() if inspect.isfunction(each)
            }
            namespace |= {
                name: each for name, each in plain.items() if name in namespace
            }
        kernels = [each for each in vars(module).values() if hasattr(each, "py_func")]
        own = [each for each in kernels if each.__module__ == module.__name__]
        for kernel in own:
            source = source_of(kernel)
            changed += bool(old) and source.count(old)
            exec(code_of(source.replace(old, new) if old else source), namespace)  # noqa: S102  # our own source, a line of it changed
        left = [each for each in namespace.values() if hasattr(each, "py_func")]
        assert not [each for each in left if each.__module__ not in IN_WORDS]
        made[module] = namespace
    assert changed == bool(old), f"{old!r} occurs {changed} times"
    return made
