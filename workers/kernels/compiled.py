"""How a kernel is compiled: ahead of its first use, without the GIL, kept on disk where that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile a loop over arrays that this program made itself."""
    return _compiled(function, boundscheck=False)


def reads_outside(function: F) -> F:
    """Compile a loop over bytes from outside: an index that is out of range raises, as in numpy."""
    return _compiled(function, boundscheck=True)


def _compiled(function: F, *, boundscheck: bool) -> F:
    try:
        compiled = numba.njit(cache=True, nogil=True, boundscheck=boundscheck)(function)
    except RuntimeError:
        # There is no directory that numba could write to: then each process compiles for itself.
        compiled = numba.njit(cache=False, nogil=True, boundscheck=boundscheck)(function)
    return cast(F, compiled)
