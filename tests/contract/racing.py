"""Step one mechanism from many threads at once, as a worker's owner partitions do, and inspect
shared objects.

cold        a fresh mechanism with empty caches: the threads' first steps all meet
race        the same mechanism in a thread per seed, each with its own state and stream
alone       the expected result: a mechanism stepped by one thread
Picture     every object reachable from some objects: its mutable parts, and whether they changed
"""

from __future__ import annotations

import functools
import gc
import hashlib
import pkgutil
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from importlib import import_module
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import msgspec
import numpy as np

import workers
from tests.contract.stage import Run, Tick, random_stream
from tests.contract.test_purity import stepped
from tests.contract.variants import Variant
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise import normal
from workers.runtime.frozen import Frozen

# Python's shortest: a thread may be interrupted after every microsecond.
SMALLEST_INTERVAL_S = 1e-6
# Mutable objects that threads may reach, each with the reason why they are safe.
MAY_CHANGE: Mapping[type, str] = MappingProxyType(
    {threading.local: "each thread sees contents of its own"}
)

_ATOMS = (
    *(int, float, bool, str, bytes, type(None), Fraction),
    *(np.generic, np.dtype, type, ModuleType, Enum),
)
_CACHE = type(functools.lru_cache(lambda: None))
_CONTAINERS = (list, dict, set, bytearray, deque)


@functools.cache
def stream_of(seed: int) -> Sequence[Tick]:
    """Return counts with gaps around 256 (a second table of weights) and 512; some empty ticks."""
    return random_stream(seed, [1, 1, 3, 40, 256, 257, 258, 513])


@functools.cache
def modules() -> Sequence[ModuleType]:
    """Return all modules that run in a worker's threads: the product without its other commands."""
    others = ["cli", "commands", "dashboard", "replay"]
    others += [f"privacy.{name}" for name in ("plan", "spending")]
    apart = tuple(f"workers.{name}" for name in others)
    names = [info.name for info in pkgutil.walk_packages(workers.__path__, "workers.")]
    return tuple(import_module(name) for name in names if not name.startswith(apart))


@functools.cache
def _cached() -> Sequence[tuple[ModuleType, str]]:
    """Return where modules have caches, which tests may have replaced."""
    return [
        (module, name)
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, _CACHE)
    ]


def caches() -> Iterator[Any]:
    return (getattr(module, name) for module, name in _cached())


def forget() -> None:
    """Empty all caches but that of the normal numbers' table, the same for every mechanism.

    Each thread would make it: nine tenths of the processor time of a race.
    """
    for cache in caches():
        if cache is not normal.table:
            cache.cache_clear()


def cold(variant: Variant) -> Mechanism:
    mechanism = variant.build()
    forget()
    return mechanism


@contextmanager
def switching(interval_s: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def race(
    mechanism: Mechanism, seeds: Sequence[int], interval_s: float = SMALLEST_INTERVAL_S
) -> list[str]:
    """Return a digest of every thread's releases and stores; all begin together."""
    together = threading.Barrier(len(seeds))

    def one(seed: int) -> str:
        run = Run(mechanism, seed)
        together.wait()
        return _digest(run, seed)

    with switching(interval_s), ThreadPoolExecutor(len(seeds)) as pool:
        return list(pool.map(one, seeds))


def alone(mechanism: Mechanism, seeds: Iterable[int]) -> list[str]:
    return [_digest(Run(mechanism, seed), seed) for seed in seeds]


def _digest(run: Run, seed: int) -> str:
    """Return the digest of the releases and all stored blocks of every tick."""
    found = hashlib.sha256()
    for t, tick in enumerate(stream_of(seed), 1):
        for part in stepped(run, t, tick):
            found.update(part)
    return found.hexdigest()


class Picture:
    def __init__(self, roots: Mapping[str, object]) -> None:
        # Paths of mutable objects that are not in `MAY_CHANGE`.
        self.changeable: list[str] = []
        self._content: dict[int, tuple[str, object]] = {}
        self._held: list[object] = []  # so that no id is used again
        for where, root in roots.items():
            self._look(root, where)

    @classmethod
    def of(cls, mechanism: Mechanism) -> Picture:
        """Take the picture of a mechanism and of all cache contents."""
        parts = (part for cache in caches() for part in gc.get_referents(cache))
        kept = [
            part for part in parts if not isinstance(part, (dict, type, FunctionType))
        ]
        return cls(
            {mechanism.kind: mechanism} | {f"kept[{i}]": p for i, p in enumerate(kept)}
        )

    def changed(self, later: Picture) -> list[str]:
        """Return where entries were added, removed or replaced since; new objects are no change."""
        mine = self._content
        other = later._content
        both = mine.keys() & other.keys()
        return [
            where
            for key, (where, was) in mine.items()
            if key in both and other[key][1] != was
        ]

    def _look(self, root: object, where: str) -> None:
        waiting: list[tuple[object, str]] = [(root, where)]
        while waiting:
            value, place = waiting.pop()
            if isinstance(value, _ATOMS) or id(value) in self._content:
                continue
            self._held.append(value)
            parts = list(_parts(value))
            content: object = [
                (name, repr(part) if isinstance(part, _ATOMS) else id(part))
                for name, part in parts
            ]
            if isinstance(value, np.ndarray):
                content = hashlib.sha256(
                    np.ascontiguousarray(value).tobytes()
                ).hexdigest()
            self._content[id(value)] = place, content
            if _could_change(value):
                self.changeable.append(f"{place}: {type(value).__name__}")
            waiting += [(part, f"{place}{name}") for name, part in parts]


def _could_change(value: object) -> bool:
    if type(value) in MAY_CHANGE or isinstance(
        value, (Frozen, MappingProxyType, tuple, frozenset)
    ):
        return False
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    if isinstance(value, msgspec.Struct):
        return not value.__struct_config__.frozen
    if is_dataclass(value):
        kind: Any = type(value)
        return not kind.__dataclass_params__.frozen
    if isinstance(value, (*_CONTAINERS, _CACHE)):
        return True
    return type(value).__module__.startswith(("workers", "tests"))


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Return an object's parts by name: its own attributes and its classes' shared ones."""
    if isinstance(value, (tuple, list, deque, set, frozenset)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, (dict, MappingProxyType)):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, np.ndarray):
        yield ".base", value.base
    elif isinstance(value, FunctionType):
        yield from (
            (f"<cell {i}>", cell) for i, cell in enumerate(value.__closure__ or ())
        )
        yield ".__defaults__", value.__defaults__
    elif isinstance(value, CellType):
        yield "", value.cell_contents
    elif isinstance(value, (MethodType, BuiltinFunctionType)):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from (
            (".func", value.func),
            (".args", value.args),
            (".keywords", value.keywords),
        )
    elif not isinstance(value, tuple(MAY_CHANGE)):
        yield from (
            (f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()
        )
        if isinstance(value, msgspec.Struct):
            yield from (
                (f".{name}", getattr(value, name)) for name in value.__struct_fields__
            )
        elif is_dataclass(value):
            yield from (
                (f".{field.name}", getattr(value, field.name))
                for field in fields(value)
            )
        for kind in type(value).__mro__:
            if kind.__module__.startswith(("workers", "tests")):
                for name, part in vars(kind).items():
                    if not name.startswith("__") and isinstance(
                        part, (*_CONTAINERS, np.ndarray)
                    ):
                        yield f"::{name}", part
