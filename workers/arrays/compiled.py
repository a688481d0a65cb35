"""Kernels: loops that are compiled at their first call, and run without the GIL.

A kernel is plain Python over arrays, and also runs uncompiled. Integers are 64 bits wide and wrap;
a division by zero raises. Kernels that read bytes from outside check every index: a hostile event
is a reject, never a wrong memory access. A *part* is a function that only kernels call: it has no
entry point for Python, which would take a fifth of its compile time.

numba is imported when a kernel is first called (`compiler`), so that commands that count nothing
start without it.
"""

from collections.abc import Callable
from functools import update_wrapper
from threading import RLock
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

# Reentrant: to compile a kernel is to make the dispatchers of those that it calls.
_MAKING = RLock()


class Kernel:
    """A function that is compiled when Python or another kernel first calls it.

    `options` are those of numba's compiler.
    """

    def __init__(
        self, function: Callable[..., Any], options: dict[str, bool], is_part: bool
    ) -> None:
        update_wrapper(self, function)
        self._function = function
        self._options = options
        self._is_part = is_part
        self._dispatcher: Any = None

    def __call__(self, *arguments: object) -> Any:
        return self.dispatcher(*arguments)

    def __getattr__(self, name: str) -> Any:
        """Return what numba asks of a function that a kernel calls, such as `_numba_type_`."""
        return getattr(self.dispatcher, name)

    @property
    def dispatcher(self) -> Any:
        """The function as numba has it: one compiled version for each tuple of argument types."""
        if self._dispatcher is None:
            from workers.arrays.compiler import compile_function

            with _MAKING:
                # Another thread may have made it while this one waited for the lock.
                if self._dispatcher is None:
                    self._dispatcher = compile_function(
                        self._function, self._options, is_part=self._is_part
                    )
        return self._dispatcher


def _compiled(
    *,
    part: bool = False,
    checked: bool = False,
    makes_arrays: bool = False,
    inline: bool = False,
) -> Callable[[F], F]:
    """Return the decorator for one of the kinds of kernels below."""
    options = {
        "nogil": True,
        "boundscheck": checked,
        # Only to make arrays are references to them counted: the caller of a kernel holds its
        # arguments. Counting took 10 ns per call within a kernel, 580 of the scanner's 720 ns per
        # event.
        "_nrt": makes_arrays,
        "forceinline": inline,
        "no_cfunc_wrapper": True,  # the unused C entry point
    }

    def decorate(function: F) -> F:
        return cast(F, Kernel(function, options, part))

    return decorate


# A loop with indices that follow from its arrays' lengths; the first kind makes no arrays.
kernel = _compiled()
kernel_with_arrays = _compiled(makes_arrays=True)
kernel_part = _compiled(part=True)
kernel_inline = _compiled(part=True, inline=True)
# The same over bytes from outside: an index beyond an array raises IndexError.
checked_kernel = _compiled(checked=True)
checked_kernel_with_arrays = _compiled(checked=True, makes_arrays=True)
checked_part = _compiled(part=True, checked=True)
# Inlined, since a call costs as much as a short string.
checked_inline = _compiled(part=True, checked=True, inline=True)
