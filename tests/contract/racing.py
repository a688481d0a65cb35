"""One mechanism stepped from many threads at once, as the owner partitions of one worker step it, and what it reaches meanwhile.

cold        a fresh mechanism, with nothing in any cache: the first step of each thread meets all the others'
race        the same mechanism in as many threads as there are seeds, each with a state and a stream of its own
alone       what they must find: a fresh mechanism, stepped by one thread
Picture     everything that can be reached from some objects: what of it could change, and whether it did
"""

from __future__ import annotations

import functools
import gc
import hashlib
import pkgutil
import random
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
from tests.contract.stage import KEYS, Run, Tick
from tests.contract.test_purity import exactly
from tests.contract.variants import DOMAIN, OTHERS, TICKS, Variant
from workers.mechanisms.mechanism import Mechanism
from workers.runtime.frozen import Frozen

#: The shortest that Python takes: a thread may be interrupted after every microsecond.
SMALLEST_INTERVAL_S = 1e-6
#: What threads may reach and change, each with the reason why they do not disturb one another.
MAY_CHANGE: Mapping[type, str] = MappingProxyType(
    {threading.local: "each thread sees contents of its own"}
)

_ATOMS = (
    int,
    float,
    bool,
    str,
    bytes,
    type(None),
    Fraction,
    np.generic,
    np.dtype,
    type,
    ModuleType,
    Enum,
)
_CACHE = type(functools.lru_cache(lambda: None))
_CONTAINERS = (list, dict, set, bytearray, deque)


@functools.cache
def stream_of(seed: int) -> Sequence[Tick]:
    """Counts with gaps on either side of 256, where a second table of weights begins, and of 512; some ticks without any."""
    rng = random.Random(seed)
    found: list[Tick] = []
    for t in range(TICKS):
        labels = [*DOMAIN, *OTHERS[: t // 4]]
        found.append(
            {
                key: {
                    label: rng.choice([1, 1, 3, 40, 256, 257, 258, 513])
                    for label in rng.sample(labels, rng.choice([0, 2, 5]))
                }
                for key in KEYS
            }
        )
    return tuple(found)


@functools.cache
def modules() -> Sequence[ModuleType]:
    """Everything that runs in the threads of a worker: all of the product but its other commands."""
    others = (
        "cli",
        "commands",
        "dashboard",
        "privacy.plan",
        "privacy.printed",
        "privacy.spending",
        "privacy.theorems",
        "replay",
    )
    apart = tuple(f"workers.{name}" for name in others)
    names = [info.name for info in pkgutil.walk_packages(workers.__path__, "workers.")]
    return tuple(import_module(name) for name in names if not name.startswith(apart))


def caches() -> Iterator[Any]:
    """Every cache of a module, by whatever decorator it was made."""
    for module in modules():
        for value in vars(module).values():
            if isinstance(value, _CACHE):
                yield value


def forget() -> None:
    """Empties every cache."""
    for cache in caches():
        cache.cache_clear()


def cold(variant: Variant) -> Mechanism:
    """A fresh mechanism; whatever its steps keep is made by them."""
    mechanism = variant.build()
    forget()
    return mechanism


@contextmanager
def switching(interval_s: float) -> Iterator[None]:
    """Threads are interrupted after so long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def race(
    mechanism: Mechanism, seeds: Sequence[int], interval_s: float = SMALLEST_INTERVAL_S
) -> list[str]:
    """What each thread released and stored, by digest; all of them begin together."""
    together = threading.Barrier(len(seeds))

    def one(seed: int) -> str:
        run = Run(mechanism, seed)
        together.wait()
        return _digest(run, seed)

    with switching(interval_s), ThreadPoolExecutor(len(seeds)) as pool:
        return list(pool.map(one, seeds))


def alone(variant: Variant, seeds: Iterable[int]) -> list[str]:
    """The same of a fresh mechanism and one thread."""
    mechanism = cold(variant)
    return [_digest(Run(mechanism, seed), seed) for seed in seeds]


def _digest(run: Run, seed: int) -> str:
    """Of the releases and all stored blocks of every tick."""
    found = hashlib.sha256()
    for t, tick in enumerate(stream_of(seed), 1):
        found.update(exactly(run, run.step(t, tick)))
        found.update(repr(sorted(run.store().items())).encode())
    return found.hexdigest()


class Picture:
    """Everything that can be reached from some objects, as it is now.

    Attributes:
        changeable: where something was found that could change, and is not in `MAY_CHANGE`.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.changeable: list[str] = []
        self._content: dict[int, tuple[str, object]] = {}
        self._held: list[object] = []  # so that no id is used again
        for where, root in roots.items():
            self._look(root, where)

    @classmethod
    def of(cls, mechanism: Mechanism) -> Picture:
        """Of a mechanism and of what the caches hold for all of them."""
        kept = [
            part
            for cache in caches()
            for part in gc.get_referents(cache)
            if not isinstance(part, (dict, type))
        ]
        of_caches = (part for part in kept if not isinstance(part, FunctionType))
        return cls(
            {mechanism.kind: mechanism} | {f"kept[{i}]": part for i, part in enumerate(of_caches)}
        )

    def changed(self, later: Picture) -> list[str]:
        """Where something was added, taken away or replaced since; objects that came since are no change of their own."""
        mine, other = self._content, later._content
        return [
            where
            for key, (where, content) in mine.items()
            if key in other and other[key][1] != content
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
                (name, repr(part) if isinstance(part, _ATOMS) else id(part)) for name, part in parts
            ]
            if isinstance(value, np.ndarray):
                content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            self._content[id(value)] = place, content
            if _could_change(value):
                self.changeable.append(f"{place}: {type(value).__name__}")
            waiting += [(part, f"{place}{name}") for name, part in parts]


def _could_change(value: object) -> bool:
    if type(value) in MAY_CHANGE or isinstance(value, (Frozen, MappingProxyType, tuple, frozenset)):
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
    """What an object holds, by name: its own attributes, and those that its classes share."""
    if isinstance(value, (tuple, list, deque, set, frozenset)):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, (dict, MappingProxyType)):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, np.ndarray):
        yield ".base", value.base
    elif isinstance(value, FunctionType):
        yield from ((f"<cell {i}>", cell) for i, cell in enumerate(value.__closure__ or ()))
        yield ".__defaults__", value.__defaults__
    elif isinstance(value, CellType):
        yield "", value.cell_contents
    elif isinstance(value, (MethodType, BuiltinFunctionType)):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif not isinstance(value, tuple(MAY_CHANGE)):
        yield from (
            ((f".{name}", part) for name, part in vars(value).items())
            if hasattr(value, "__dict__")
            else ()
        )
        if isinstance(value, msgspec.Struct):
            yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
        elif is_dataclass(value):
            yield from ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
        for kind in type(value).__mro__:
            if kind.__module__.startswith(("workers", "tests")):
                shared = (
                    (name, part) for name, part in vars(kind).items() if not name.startswith("__")
                )
                yield from (
                    (f"::{name}", part)
                    for name, part in shared
                    if isinstance(part, (*_CONTAINERS, np.ndarray))
                )
