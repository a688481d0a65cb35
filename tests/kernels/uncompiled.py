"""A kernel as it is written: plain Python, one index after the other."""

from __future__ import annotations

from typing import Any


def uncompiled(function: Any) -> Any:
    """The function that a kernel was compiled from; the function itself where the compiler is off."""
    return getattr(function, "py_func", function)


def compiled(function: Any) -> Any:
    """The kernel as it runs."""
    return function


WAYS = (compiled, uncompiled)
