"""The short form of the search: no content may cost a stage more, for each byte, than `BOUNDS` says.

`python -m tests.bounds` is the long form. Here are the worst shapes that are known, a short climb, and two planted faults
that it has to find. Processor time is the thread's, and its bounds are several times what was measured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from tests.bounds.search import MEMORY, TIME, Cell, Search, bound, cells, said
from tests.bounds.shapes import RECORDS, Kind, Shape, begins, of, together
from workers.events.json import Json
from workers.events.logs import Bools, Bytes, Logs, Longs
from workers.events.project import Event, Projection

pytestmark = pytest.mark.slow

#: Bytes of a batch: enough for a bound to be above `CONSTANT`, and for what is more than linear to show.
WORST_BYTES, SHORT_BYTES = 500_000, 100_000
#: Shapes that a short climb tries.
TRIES = 60

NULLS = Shape((Kind((), null=True),), RECORDS // 3)
#: The worst of each that were found by hand and by climbing, without what made no difference.
WORST = [
    # One record with 485,000 items: a scanner once asked for 8 GB.
    (Cell("contribute", MEMORY, "several", "json"), Shape((of(items=("ones", 970_000)),))),
    (Cell("contribute", MEMORY, "several", "avro"), Shape((of(items=("ones", 970_000)),))),
    # An empty text of Avro is one byte, and takes 140 to 190 in five views.
    (Cell("contribute", MEMORY, "several", "avro"), Shape((of(items=("empty words", 970_000)),))),
    (
        Cell("contribute", MEMORY, "several", "protobuf"),
        Shape((of(items=("empty words", 970_000)),)),
    ),
    (Cell("contribute", TIME, "items", "json"), NULLS),
    (
        Cell("contribute", TIME, "several", "json_schema"),
        Shape((of(ts=("distinct words", 20)),), RECORDS),
    ),
    (
        Cell("contribute", TIME, "several", "protobuf"),
        Shape((of(ts=("cut off", 20)),), RECORDS // 3),
    ),
    (Cell("rekey", MEMORY, "rekey", "json"), Shape((of(key=("words", 6)),), RECORDS // 6)),
    (Cell("rekey", TIME, "rekey", "json"), Shape((of(key=("words", 6)),), RECORDS // 3)),
    (
        Cell("release", MEMORY, "several", "json"),
        Shape((of(items=("distinct words", 20)),), RECORDS),
    ),
    (Cell("release", TIME, "several", "json"), Shape((of(items=("distinct words", 20)),), RECORDS)),
    (Cell("check", MEMORY, "several", "json"), Shape((of(lines=("distinct lines", 970_000)),))),
    (
        Cell("check", TIME, "several", "json"),
        Shape((of(key=("words", 18), kind=("escaped counts", 8)),), 3_000),
    ),
    (
        Cell("replay", MEMORY, "several", "json"),
        Shape((Kind((("other", "lines of exponents", 20),), "names twice"),), 400),
    ),
    (
        Cell("replay", TIME, "several", "json"),
        Shape((of(items=("distinct words", 20), lines=("distinct lines", 20)),), RECORDS),
    ),
]
#: The settings that have the most work with an event.
CELLS = [cell for cell in cells(["json", "avro"]) if cell.variant in ("several", "rekey")]
PAIRS, ROWS = (
    Cell("contribute", TIME, "items", "json"),
    Cell("contribute", MEMORY, "several", "json"),
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Each batch of rejects would be a line of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def climbed(*asked: Cell) -> Search:
    """Return a short search, which ends where something is above its bound."""
    search = Search(1, asked, SHORT_BYTES)
    for _ in search.begin(together() if len(asked) == 1 else []):
        if search.above():
            return search
    for _ in search.climb(lambda: search.tried >= TRIES or bool(search.above())):
        pass
    return search


def named(cell: Cell) -> str:
    """Return the name of a cell."""
    return f"{cell.stage}-{cell.what}-{cell.variant}-{cell.form}"


@pytest.mark.parametrize(
    ("cell", "shape"),
    [
        pytest.param(cell, shape, id=f"{named(cell)}-{number}")
        for number, (cell, shape) in enumerate(WORST)
    ],
)
def test_the_worst_shapes_known_are_within_their_bounds(cell: Cell, shape: Shape) -> None:
    """Bytes, or ns, for each byte that was read."""
    search = Search(1, [cell], WORST_BYTES)
    [*_, (_, worst)] = search.begin([shape])
    assert worst.score <= bound(cell), said(shape)


@pytest.mark.parametrize("asked", [CELLS, [PAIRS], [ROWS]], ids=["all", "pairs", "rows"])
def test_a_short_climb_finds_nothing_above_a_bound(asked: list[Cell]) -> None:
    """In the cells of the planted faults, too: there it is the same climb, without them."""
    above = climbed(*asked).above()
    assert not above, [(cell, worst.score, said(worst.shape)) for cell, worst in above]


def test_a_climb_finds_a_loop_over_all_pairs_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the general reader, which only sees what the scanner declines."""
    right = Projection.event

    def slow(self: Projection, record: object) -> Event | str:
        found = right(self, record)
        if not isinstance(found, str):
            for seen in filter(None, found.views):
                labels = [str(label) for label in seen.labels[:6_000]]
                sum(one in other or other in one for one in labels for other in labels)
        return found

    monkeypatch.setattr(Projection, "event", slow)
    assert climbed(PAIRS).above()


def test_a_climb_finds_a_buffer_that_doubles_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the scanner, as it was: when the rows of the log ran out, the text's room doubled with them."""
    right = Json.scan

    def wasteful(
        self: Json, data: Bytes, values: Longs, plain: Bools | None = None
    ) -> Iterator[Logs]:
        for logs in right(self, data, values, plain):
            rows, size = 8 * len(logs.ends) + 64, len(data)
            while rows < len(logs.rows):
                rows, size = 2 * rows, 2 * size
            decoded = np.empty(min(size, 1 << 29), dtype=np.uint8)
            yield logs
            del decoded

    monkeypatch.setattr(Json, "scan", wasteful)
    assert climbed(ROWS).above()


def test_every_shape_that_a_search_begins_with_can_be_made() -> None:
    """A shape that raises would end the search."""
    for shape in [*begins(), *together()]:
        keys, values = Shape(shape.kinds, 1).records(SHORT_BYTES)
        assert len(keys) == len(values) > 0
