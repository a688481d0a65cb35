"""How a kernel is compiled: at its first call, without the GIL, and kept on disk where that can be written.

A kernel is plain Python over arrays, so it can be read, and run uncompiled, as what it says. Integers
are 64 bits wide and wrap; a division by zero raises. Those that read bytes from outside check every
index: a hostile event is a reject, never a wrong memory access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a loop over arrays whose indices follow from their own lengths."""
    return _compiled(function, boundscheck=False)


def reads_outside(function: F) -> F:
    """Compile a loop over bytes from outside: an index beyond an array raises IndexError."""
    return _compiled(function, boundscheck=True)


def _compiled(function: F, *, boundscheck: bool) -> F:
    try:
        made = numba.njit(nogil=True, cache=True, boundscheck=boundscheck)(function)
    except RuntimeError:
        # Neither beside the source nor in the user's cache directory can anything be written.
        made = numba.njit(nogil=True, boundscheck=boundscheck)(function)
    return cast(F, made)
