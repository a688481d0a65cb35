"""The installed version.

How many cores there are to work on.

The memory of this process: how freed memory is held, and that none of it is in a core dump.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Linux's name for what `prctl` sets.
_PR_SET_DUMPABLE = 4
# glibc's names for what `mallopt` sets.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# The most that glibc takes as a threshold of mmap, and room for a few batches.
_MMAP_BYTES, _KEPT_BYTES = 32 << 20, 64 << 20


def keep_freed_memory() -> None:
    """Have malloc keep the arrays of one batch for the next one, where the C library is glibc.

    By default it gives arrays of a few 100 kB back to the system and faults them in again: with
    five histograms over different fields that took 0.6 of the 1.8 us that reading an event takes.
    """
    with suppress(OSError, AttributeError):  # other C libraries have no such thing
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def forbid_core_dumps() -> None:
    """Keep this process out of core dumps: its memory may hold the key, exact counts and passwords.

    A dump that the kernel pipes to a program (systemd-coredump, apport) ignores the limit of its
    size, so on Linux the process is also marked as not dumpable. A forked child inherits both, a
    program that it executes only the limit.

    Raises:
        OSError: the system refuses.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None, use_errno=True)
        if library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise OSError(ctypes.get_errno(), f"core dumps cannot be turned off: prctl: {reason}")


def version() -> str | None:
    """Return the installed version; None in a checkout that is not installed."""
    try:
        return installed("quietcount")
    except PackageNotFoundError:
        return None
