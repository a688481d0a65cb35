"""Neighbouring streams take the same way through the whole worker.

The long form, with figures: `python -m tests.neighbours --pairs 1000000 --seed N`.
"""

import logging
from collections.abc import Iterator

import pytest

from tests.contract.variants import VARIANTS
from tests.neighbours.driver import replaced
from tests.neighbours.pairing import NEIGHBOURS, STREAMS, Search, shrunk
from tests.neighbours.planted import LEAKS
from tests.neighbours.rules import TRAITS
from workers.mechanisms.registry import MECHANISMS

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings about rejects take longer than the comparison."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with replaced():
        yield
    logging.disable(before)


@pytest.mark.parametrize("place", range(len(VARIANTS)), ids=lambda place: str(VARIANTS[place]))
def test_neighbours_differ_only_in_their_own_counts(place: int) -> None:
    """A few pairs of every variant of every mechanism, the same in every run."""
    search = Search()
    for violation in search.pairs(place * NEIGHBOURS * STREAMS, 4):
        pytest.fail(str(shrunk(violation)))
    assert sum(one.pairs for one in search.figures.values()) == 4


@pytest.mark.parametrize("name", LEAKS)
def test_planted_leaks_are_found(name: str) -> None:
    """How soon they are without a known seed: `python -m tests.neighbours --planted`."""
    leak, seed = LEAKS[name]
    with leak():
        assert next(Search().pairs(seed, 1), None) is not None, f"{name}: not found"
    assert not list(Search().pairs(seed, 1)), "the same pair without the leak"


def test_a_violation_is_shrunk_to_few_events() -> None:
    leak, seed = LEAKS["a count over max_count is kept"]
    with leak():
        found = next(Search().pairs(seed, 1))
        fewer = shrunk(found)
    assert fewer.texts
    assert len(fewer.stream.events) == 1 < len(found.stream.events)
    assert len(fewer.stream.script) < len(found.stream.script)


def test_every_trait_is_of_a_mechanism() -> None:
    assert {name.split()[0] for name in TRAITS} <= set(MECHANISMS)
