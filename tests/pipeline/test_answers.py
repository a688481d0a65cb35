"""Answers cut into pages are whole again after joining, in every reader."""

import importlib.util
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.pipeline.test_snapshots import pages
from workers.client.messages import Pages as DashboardPages
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Answers
from workers.pipeline.snapshots import join_pages, split_fields

EXAMPLE = ROOT / "examples" / "consumers" / "snapshots.py"


def example() -> ModuleType:
    """Return the example that consumers copy; it belongs to no package."""
    spec = importlib.util.spec_from_file_location("consumers_snapshots", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbered(values: list[Any]) -> list[dict[str, Any]]:
    return [{"query": f"q{i}", "value": value} for i, value in enumerate(values)]


CONSUMERS = example()
LABELS = st.lists(st.text(max_size=12), max_size=30)
ITEM = st.tuples(st.text(max_size=12), st.integers(-(2**53) + 1, 2**53 - 1)).map(list)
ITEMS = st.lists(ITEM, max_size=30)
NUMBERS = st.lists(st.integers(-9, 9), max_size=30)
VALUE = st.one_of(
    st.none(), st.integers(-5, 5), st.text(max_size=12), LABELS, ITEMS, NUMBERS
)
FIELDS = st.one_of(
    st.fixed_dictionaries(
        {
            "query": st.just("q"),
            "value": VALUE,
            "since": st.integers(0, 9),
            "error": st.just(1.5),
        }
    ),
    st.fixed_dictionaries(
        {
            "query": st.just("top"),
            "labels": LABELS,
            "complete": st.booleans(),
            "labels_left": st.just(3),
        }
    ),
    st.fixed_dictionaries(
        {
            "answers": st.lists(VALUE, min_size=2, max_size=6).map(numbered),
            "since": st.just(0),
        }
    ),
)


@pytest.mark.slow
@given(FIELDS, st.integers(200, 600))
def test_parts_are_short_enough_and_join_to_what_was_cut(
    fields: dict[str, Any], room: int
) -> None:
    """A label lost or doubled at a page edge would change the answer under the same guarantee."""
    cut = split_fields(fields, room)
    assert join_pages(cut) == fields
    lists = [
        n for n in ("labels", "value", "answers") if isinstance(fields.get(n), list)
    ]
    without = fields | {name: [] for name in lists}
    assert all(
        len(orjson.dumps(part)) <= room + len(orjson.dumps(without)) for part in cut
    )


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [900, 2_000, 900_000])
@given(fields=FIELDS)
def test_readers_put_the_pages_of_answers_together(
    max_bytes: int, fields: dict[str, Any]
) -> None:
    """The dashboard and the consumer examples see the answer of an unlimited page."""
    answers = Answers({0: fields}, None)
    [whole] = pages(answers, Ledger(), 10**9)
    cut = pages(answers, Ledger(), max_bytes)
    assert all(len(page) <= max_bytes for page in cut)
    of_dashboard = DashboardPages()
    of_consumers = CONSUMERS.Pages()
    *_, shown = [of_dashboard.receive("products", page) for page in cut]
    *_, read = [of_consumers.receive(page) for page in cut]
    assert shown is not None and orjson.loads(shown.json) == orjson.loads(whole)
    assert read is not None and read.answer == fields


def test_answers_do_take_pages_where_they_are_long() -> None:
    """Control: the answers joined above were really cut."""
    answers = [{"query": f"q{i}", "value": ["x" * 90] * 20} for i in range(3)]
    cut = pages(Answers({0: {"answers": answers, "since": 0}}, None), Ledger(), 900)
    bodies = [orjson.loads(page) for page in cut]
    assert len(bodies) > 5
    assert [body["page"] for body in bodies] == list(range(1, len(bodies) + 1))
    assert any(
        a["answers"][-1]["query"] == b["answers"][0]["query"]
        for a, b in pairwise(bodies)
    )
