"""Mutable objects are refused between threads; see also tests/contract/test_threads.py."""

import copy
import functools
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest

from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.noise.keyed import NoiseKey
from workers.runtime.frozen import Frozen, check_frozen, memoized, read_only, thawed


class Pair(Frozen):
    def __init__(self, first: Any, second: Any = None) -> None:
        self.first = first
        self.second = second


@dataclass(frozen=True)
class Loose:
    held: Any


class Record(msgspec.Struct, frozen=True):
    held: Any


class Changing(msgspec.Struct):
    held: Any


ATOMS = (
    1,
    2.5,
    "s",
    b"b",
    None,
    True,
    Fraction(1, 3),
    np.int64(3),
    np.dtype(np.int16),
    int,
    len,
)
NESTED = (
    (),
    (1, (2, "x")),
    frozenset((1, "a")),
    MappingProxyType({"a": (1,)}),
    Loose((1,)),
)
OBJECTS = (
    read_only(np.zeros(3)),
    Record("x"),
    threading.local(),
    LiftedCounter(8, 0.1),
)
MUTABLE: Any = (
    [],
    {},
    set(),
    bytearray(),
    np.zeros(3),
    np.array([[]], object),
    Changing(1),
)
HOLDING: Any = (
    (1, []),
    MappingProxyType({"a": []}),
    Loose([]),
    Record({}),
    [].append,
    {}.get,
)
CALLED = (lambda: None, functools.lru_cache(lambda: None), functools.partial(len))


@pytest.mark.parametrize(
    "value", ATOMS + NESTED + OBJECTS, ids=lambda value: type(value).__name__
)
def test_what_cannot_change_may_be_shared(value: object) -> None:
    """Refusing it would lead people to bypass the check."""
    check_frozen(value, "it")
    assert Pair(value, (value,)).first is value


@pytest.mark.parametrize(
    "value", [*MUTABLE, *HOLDING, *CALLED, object(), threading.Lock()]
)
def test_what_can_change_is_refused_when_it_is_made(value: object) -> None:
    """One thread would write while another reads; the message names the place, not the content."""
    with pytest.raises(TypeError, match=r"Pair\.second"):
        Pair(1, value)
    with pytest.raises(TypeError, match=r"Pair\.first\[0\]"):
        Pair((value,))


def test_a_read_only_view_of_an_array_that_somebody_may_write_to_is_refused() -> None:
    """Its owner changes what every thread reads."""
    owner = np.zeros(4)
    view = read_only(owner[:2])
    with pytest.raises(TypeError, match="writeable"):
        Pair(view)
    read_only(owner)
    Pair(view)


def test_nothing_is_set_or_deleted_once_the_outermost_constructor_is_through() -> None:
    """A lazily filled cache writes after the constructor."""

    class Child(Pair):
        def __init__(self) -> None:
            super().__init__(1)
            self.third = 3  # the base's constructor does not seal what a child's has not finished

    made = Child()
    assert made.third == 3
    with pytest.raises(TypeError, match=r"Child\.first: threads share it"):
        made.first = 2
    with pytest.raises(TypeError, match=r"Child\.fourth"):
        made.fourth = 4
    with pytest.raises(TypeError, match=r"Child\.third"):
        del made.third
    assert vars(made) == {"first": 1, "second": None, "third": 3}


def test_caches_of_functools_and_tables_of_a_class_are_refused_where_the_class_is_written() -> (
    None
):
    """They write past __setattr__: into the instance's dictionary, or beside it."""
    with pytest.raises(TypeError, match=r"Lazy\.table is a lazy cache"):

        class Lazy(Frozen):
            @functools.cached_property
            def table(self) -> tuple[int, ...]:
                return (1,)

    with pytest.raises(TypeError, match=r"Remembering\.table is a lazy cache"):

        class Remembering(Frozen):
            @functools.lru_cache  # noqa: B019  # what is to be refused
            def table(self) -> tuple[int, ...]:
                return (1,)

    with pytest.raises(TypeError, match=r"Filled\.tables"):

        class Filled(Frozen):
            tables: dict[int, int] = {}  # noqa: RUF012  # what is to be refused


def test_kept_results_are_checked_and_kept() -> None:
    """All callers of a cache share its results."""
    calls = []

    @memoized(2)
    def table(n: int) -> object:
        calls.append(n)
        return tuple(range(n)) if n < 5 else list(range(n))

    assert table(3) is table(3) and calls == [3]
    table.cache_clear()
    assert table(3) == (0, 1, 2) and calls == [3, 3]
    with pytest.raises(TypeError, match=r"table\(\): a list can change"):
        table(5)


def test_a_thawed_copy_belongs_to_one_thread_and_is_refused_where_threads_would_share_it() -> (
    None
):
    """Replay's copy has a memory, which must never reach the worker's threads."""
    counter = LiftedCounter(8, 0.1)
    own = thawed(counter)
    object.__getattribute__(own, "__dict__")["_note"] = []
    own.horizon = 9
    assert (counter.horizon, own.horizon) == (8, 9)
    assert own._variances is counter._variances
    with pytest.raises(TypeError, match="a thawed one"):
        check_frozen(own, "it")


def test_a_class_of_one_thread_says_so_and_is_refused_where_threads_would_share_it() -> (
    None
):
    """Replay's key remembers tags; the worker's does not."""

    class Remembering(NoiseKey, shared=False):
        def __init__(self) -> None:
            super().__init__(bytes(32))
            self.tags_made: list[bytes] = []

    made = Remembering()
    made.tags_made.append(b"t")
    with pytest.raises(TypeError, match="a thawed one"):
        check_frozen(made, "key")


def test_copies_of_what_is_frozen_are_frozen() -> None:
    counter = LiftedCounter(8, 0.1)
    for same in (copy.copy(counter), pickle.loads(pickle.dumps(counter))):
        assert same.public() == counter.public()
        check_frozen(same, "it")
        with pytest.raises(TypeError, match="threads share it"):
            same.horizon = 9


def test_the_message_shows_nothing_of_a_secret() -> None:
    with pytest.raises(TypeError) as refused:
        Pair(["the root key"])
    assert "root key" not in str(refused.value)


_RACE = """
import importlib, sys, threading
from workers.client import changes
from workers.mechanisms.config import checked, sums
from workers.runtime import frozen

def race(work):
    barrier = threading.Barrier(6)
    threads = [threading.Thread(target=lambda: (barrier.wait(), work())) for _ in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

if "planted" in sys.argv:
    frozen.ready = checked.ready = lambda *records: None
both = {"mechanism": "unk_base", "threshold": 3.0, "sd": 2.0, "items": [["a", 9]]}
both |= {"sums": [[1.0, 0.5, 0.1, 1.0]], "sum": {"from": 0, "to": 20, "step": 0.5, "sd": 3.0}}
both |= {"all_items": {"count": 15, "sd": 2.0}, "windows": [{"ms": 1, "ticks": 1, "sd": 1.0}]}
of = [both | {"tick": tick, "start": tick, "end": tick + 1} for tick in (1, 2)]
sys.setswitchinterval(1e-6)
# Without `ready` a race in some 50 is lost.
for _ in range(200):
    importlib.reload(changes)
    race(lambda: changes.changes(of[1], of[0], 0))
    checked.rules.cache_clear()
    race(lambda: sums.parse_sum({"field": "f", "from": 0, "to": 20, "step": 0.5}))
"""


def race(*planted: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", _RACE, *planted], capture_output=True, check=False
    )


@pytest.mark.slow
def test_threads_may_meet_at_the_first_use_of_a_record_that_is_ready() -> None:
    """Two requests for changes at once could end the dashboard."""
    run = race()
    assert run.returncode == 0, run.stderr.decode()


@pytest.mark.slow
def test_threads_that_meet_at_the_first_use_of_a_record_end_the_process() -> None:
    """Without `ready` one of so many races is lost; on a busy machine some are not."""
    assert any(race("planted").returncode == -signal.SIGSEGV for _ in range(10))
