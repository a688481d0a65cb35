"""Neighbouring streams take the same way through the whole worker.

The long form, with figures: `python -m tests.neighbours --pairs 1000000 --seed N`.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import pytest

from tests.neighbours.driver import replaced
from tests.neighbours.pairing import Search, shrunk, violated
from tests.neighbours.pairs import ALL, REMOVED, Neighbour, Stream
from tests.neighbours.planted import LEAKS, Leak
from tests.neighbours.rules import TRAITS
from tests.neighbours.scenes import (
    BY_NAME,
    KEYS,
    START_MS,
    TICK_MS,
    USERS,
    Content,
    Event,
    Seed,
    Step,
    make_scene,
)
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.metrics import CONTRIBUTE, REKEY

pytestmark = pytest.mark.slow

#: The worlds with which every planted leak is found.
CONTENT = partial(Search, worlds=3)
#: Neighbours by records that come and go.
RECORDS = partial(Search, grids=True, states=2)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings about rejects take longer than the comparison."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with replaced():
        yield
    logging.disable(before)


@cache
def kinds_of(search_of: Callable[[], Search], seed: Seed) -> dict[str, int]:
    """Search without a leak, once for all tests of a seed; return how many pairs were of a kind."""
    search = search_of()
    for violation in search.streams([seed]):
        pytest.fail(str(shrunk(violation)))
    return search.kinds


@pytest.mark.parametrize("name", BY_NAME)
def test_neighbours_differ_only_in_their_own_counts(name: str) -> None:
    """A few pairs of every variant of every mechanism, the same in every run."""
    assert sum(kinds_of(CONTENT, Seed(name, 0)).values()) == 3


@pytest.mark.parametrize("name", ["known_base-user", "unk_base-constant"])
def test_records_that_come_and_go_change_their_own_counts_only(name: str) -> None:
    """Of each record, or user, only whether it is there; the long form has more states."""
    assert kinds_of(RECORDS, Seed(name, 0)) == {REMOVED: 12}


def check_found(leak: Leak, search_of: Callable[[], Search], seed: Seed | None) -> None:
    assert seed is not None
    with leak.plant():
        assert next(search_of().streams([seed]), None), "not found"
    assert kinds_of(search_of, seed), "the same without the leak"


@pytest.mark.parametrize("name", [name for name, leak in LEAKS.items() if leak.content])
def test_planted_leaks_are_found(name: str) -> None:
    """How soon they are without a known seed: `python -m tests.neighbours --planted`."""
    check_found(LEAKS[name], CONTENT, LEAKS[name].content)


@pytest.mark.parametrize("name", [name for name, leak in LEAKS.items() if leak.records])
def test_planted_leaks_are_found_where_records_come_and_go(name: str) -> None:
    """How soon they are without a known seed: `python -m tests.neighbours --records --planted`."""
    check_found(LEAKS[name], RECORDS, LEAKS[name].records)


def test_a_violation_is_shrunk_to_few_events() -> None:
    leak = LEAKS["a count over max_count is kept"]
    assert leak.content is not None
    with leak.plant():
        found = next(Search().streams([leak.content]))
        fewer = shrunk(found)
    assert fewer.texts
    assert len(fewer.stream.events) == 1 < len(found.stream.events)
    assert len(fewer.stream.script) < len(found.stream.script)


def test_with_rekey_a_rejected_record_closes_ticks_if_its_user_and_time_can_be_read() -> (
    None
):
    """Otherwise docs/guarantee.md says too much. Only stage 1 looks at the rest of the record."""
    scene = next(
        one
        for one in (make_scene(name, n) for n in range(20) for name in BY_NAME)
        if one.rekey and one.partitions == 1 and one.format == "json"
    )
    late_ms = START_MS + 3 * TICK_MS
    first = Event(0, START_MS, START_MS, USERS[0], Content(KEYS[0]))
    other = replace(first, time_ms=late_ms, arrived_ms=late_ms, garbage="items")
    script = (
        Step("read", REKEY, 0, ALL, late_ms),
        Step("idle", REKEY, 0, 0, late_ms + 2_000),
        *(
            Step("read", CONTRIBUTE, at, ALL, late_ms + 2_000)
            for at in range(scene.sources)
        ),
    )
    stream = Stream(scene, (first, other), script)
    events = first, replace(other, garbage="cut")
    near = Neighbour("garbage", events, (1,), False, stream.events, True)
    closed = [text for text in violated(stream, near) if CONTRIBUTE in text]
    assert closed


def test_every_trait_is_of_a_mechanism() -> None:
    assert {name.split()[0] for name in TRAITS} <= set(MECHANISMS)
