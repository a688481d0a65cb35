"""No content makes a stage take more memory or time for each byte than docs/reliability.md says.

`python -m tests.bounds` is the long form, which searches for an hour. Here are the worst shapes that it has found, a few
hundred others, and two planted faults that the same search must find. Processor time is the thread's, and the bounds are
several times what was measured, so a busy machine changes nothing; what is quadratic is off by orders of magnitude.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.bounds.search import BOUNDS, MEMORY, TIME, Cell, Search, cells, said
from tests.bounds.shapes import Shape, begins
from tests.bounds.worst import WORST
from workers.events.json import Json
from workers.events.logs import Logs
from workers.events.project import Event, Projection

TRIES = 150
#: The planted faults are found within so many.
PLANTED_TRIES = 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each batch of rejects would be a line of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def tries(search: Search, number: int) -> Any:
    """What says that so many shapes were tried from now on."""
    end = search.tried + number
    return lambda: search.tried >= end


@pytest.mark.parametrize(
    ("cell", "shape"), WORST, ids=[f"{cell.stage}-{cell.what}-{cell.variant}-{cell.form}" for cell, _ in WORST]
)
def test_the_worst_shapes_known_are_within_their_bounds(cell: Cell, shape: Shape) -> None:
    """Each was the worst of its cell in an hour of search."""
    search = Search(1, [cell])
    list(search.begin([shape]))
    assert search.worst[cell].score <= BOUNDS[cell.what][cell.stage], said(shape)


@pytest.mark.parametrize("form", ["json", "avro", "protobuf", "json_schema"])
def test_a_short_search_finds_nothing_above_a_bound(form: str) -> None:
    """Another seed than the long search had."""
    search = Search(7, cells([form]))
    list(search.climb(tries(search, TRIES)))
    assert not search.above(), [(cell, worst.score, said(worst.shape)) for cell, worst in search.above()]


def test_a_search_finds_a_loop_over_all_pairs_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the general reader, where only records that the scanner declines come by."""
    right = Projection.event

    def slow(self: Projection, record: object) -> Event | str:
        found = right(self, record)
        labels = record.get("items") if isinstance(record, dict) else None
        if isinstance(labels, list):
            sum(1 for one in labels[:3_000] for other in labels[:3_000] if one is other)
        return found

    monkeypatch.setattr(Projection, "event", slow)
    cell = Cell("contribute", TIME, "items", "json")
    search = Search(1, [cell])
    list(search.climb(tries(search, PLANTED_TRIES)))
    assert search.above()


def test_a_search_finds_a_buffer_that_grows_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the scanner: room for text that is as large as the rows are many."""
    right = Json.scan

    def wasteful(self: Json, *args: Any) -> Iterator[Logs]:
        for logs in right(self, *args):
            np.empty(400 * len(logs.rows), dtype=np.uint8)
            yield logs

    monkeypatch.setattr(Json, "scan", wasteful)
    cell = Cell("contribute", MEMORY, "items", "json")
    search = Search(1, [cell])
    list(search.climb(tries(search, PLANTED_TRIES)))
    assert search.above()


def test_every_shape_that_a_search_begins_with_can_be_made() -> None:
    """A shape that raises would be passed over for ever."""
    for shape in begins():
        keys, values = Shape(shape.kinds, 1).records()
        assert len(keys) == len(values) > 0
