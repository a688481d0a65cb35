"""The snapshot interface: fields, order, pages, and equal bytes for equal releases."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from tests.arrays.uncompiled import WAYS
from workers.arrays import texts as kernels
from workers.arrays.texts import (
    NO_RANK,
    TOO_LONG,
    Texts,
    items_as_numbers,
    readonly_contiguous,
)
from workers.arrays.types import Longs
from workers.mechanisms.accounting import Guarantee
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Answers, Items, Release
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import LabelCache, Numeric, ReleasedTick, snapshots
from workers.runtime.sizes import VALUE_BYTES


def tick(release: Any) -> ReleasedTick:
    times: dict[str, Any] = {"epoch": 3, "tick": 42, "start_ms": 1795219200000}
    times["end_ms"] = 1795219210000
    guarantee = Guarantee(unit="event", rho=0.021, epsilon=1.0, delta=1e-9)
    return ReleasedTick(
        guarantee=guarantee,
        release=release,
        **times,
        histogram="products",
        mechanism="unk_base",
        id="ab" * 16,
    )


def pages(
    release: Any, ledger: Ledger, max_bytes: int = VALUE_BYTES, keys: str = "k"
) -> list[bytes]:
    """Return the snapshots of a release, of single-letter stream keys."""
    made = release if isinstance(release, ReleasedTick) else tick(release)
    return [
        value
        for _, value in snapshots(made, ledger, list(keys), LabelCache(), max_bytes)
    ]


def columns(labels: list[tuple[int, str]]) -> Ledger:
    out = Ledger()
    for key, label in labels:
        text = label.encode()
        tags = NoiseKey(bytes(32)).tags(str(key), [text])
        out.append(tags, np.array([key], np.int32), Texts.of([text]))
    return out


def items_of(pages: list[bytes]) -> list[list[Any]]:
    """Return the items of all pages, which are numbered in their order."""
    bodies = [json.loads(page) for page in pages]
    numbers = [(body["page"], body["pages"]) for body in bodies]
    assert numbers == [(i, len(pages)) for i in range(1, len(pages) + 1)]
    return [item for body in bodies for item in body["items"]]


def test_a_snapshot_has_the_fields_of_the_interface_in_their_order() -> None:
    table = columns([(0, "p1"), (1, "q"), (0, "p2")])
    release = Release(np.array([0, 2]), np.array([900, 1234]), 17.3, 121)
    one, other = snapshots(tick(release), table, ["s1", "s2"], LabelCache())
    assert one == (
        "s1",
        (
            b'{"histogram":"products","key":"s1","epoch":3,"tick":42,"start":1795219200000,"end":1795219210000,'
            b'"items":[["p2",1234],["p1",900]],"sd":17.3,"threshold":121.0,'
            b'"guarantee":{"unit":"event","rho":0.021,"epsilon":1.0,"delta":1e-9},'
            b'"mechanism":"unk_base","id":"abababababababababababababababab","page":1,"pages":1}'
        ),
    )
    assert json.loads(other[1])["items"] == []


def test_a_histogram_of_numbers_says_its_edges_and_quantiles() -> None:
    """They follow the unchanged item order, computed from each stream key's own counts."""
    labels = Buckets((0, 10, 50)).labels
    table = columns([(key, label) for key in (0, 1) for label in labels])
    release = Release(np.arange(8), np.array([1, 900, 50, 7, 2, -3, 1, 4]), 5.0, None)
    made = replace(tick(release), numeric=Numeric(Buckets((0, 10, 50)), (0.5,)))
    (_, one), (_, other) = snapshots(made, table, ["s1", "s2"], LabelCache())
    assert (
        b'"items":[["[0,10)",900],["[10,50)",50],[">=50",7],["<0",1]],"edges":[0.0,10.0,50.0],'
        b'"quantiles":[{"q":0.5,"bucket":"[0,10)","value":5.31111,"low":5.21678,"high":5.40551}],"sd":5.0,'
    ) in one
    nothing = (
        b'"quantiles":[{"q":0.5,"bucket":null,"value":null,"low":null,"high":null}]'
    )
    assert nothing in other
    assert nothing not in one


def test_items_stand_largest_first_and_ties_by_label() -> None:
    """Any other order could reveal the items' order of arrival."""
    names = ["b", "é", "a", "Z", "\U0001f600", "n", "aa"]
    rows = [(0, name) for name in names]
    table = columns(rows)
    counts = np.array([5, 5, 5, 5, 5, -3, 9])
    [value] = pages(Release(np.arange(7), counts, 1.0, None), table)
    assert json.loads(value)["items"] == in_order(rows, [*range(7)], counts, "0")


def in_order(
    rows: list[tuple[int, str]], shown: list[int], counts: Longs, key: str
) -> list[Any]:
    """Return the shown items of a stream key, largest first, ties by label."""
    items = [(*rows[row], n) for row, n in zip(shown, counts.tolist(), strict=True)]
    own = [[name, n] for number, name, n in items if str(number) == key]
    return sorted(own, key=lambda item: (-item[1], item[0]))


def test_the_order_is_the_same_however_labels_were_met() -> None:
    """Labels arrive singly and in bulk, under several stream keys, with counts too wide to pack."""
    rng = random.Random(3)
    lengths = [rng.randint(1, 4) for _ in range(400)]
    names = [rng.choice("abcxyzé") * n + str(rng.randint(0, 30)) for n in lengths]
    rows = list(dict.fromkeys((rng.randint(0, 2), name) for name in names))
    table = columns(rows)
    cache = LabelCache()
    known: list[int] = []
    wide = 1 << 40
    very_wide = 1 << 60
    steps = [(1, 1), (200, 1), (0, 1), (0, 1), (3, wide), (1, 1), (0, 1)]
    for new, scale in [*steps, (60, very_wide), (0, very_wide), (2, 1), (0, 1)]:
        size = min(len(known) + new, len(rows))
        known = rng.sample([*known, *range(len(known), size)], size)
        counts = np.array([rng.randint(-3, 3) * scale for _ in known], dtype=np.int64)
        release = Release(np.array(known), counts, 1.0, None)
        for key, value in snapshots(tick(release), table, ["0", "1", "2"], cache):
            assert json.loads(value)["items"] == in_order(rows, known, counts, key)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_items_are_written_as_a_json_library_writes_them(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A custom loop writes them; consumers must not notice, whatever the labels."""
    for name in ("items_as_numbers", "numbers_as_json"):
        monkeypatch.setattr(kernels, name, way(getattr(kernels, name)))
    names = [
        "",
        "a",
        'quo"te',
        "back\\slash",
        "\x00\x1f\x7f\n",
        "\u00e9\u2028\U0001f600",
        "x" * 1_000,
        "\x01" * 1_000,
    ]
    # Plain Python has no words of 64 bits without a sign, which other text takes.
    names = [name for name in names if way is WAYS[0] or name.isascii()]
    numbers = [0, 7, -1, 10, 99, 100, -(2**63 - 1), 2**63 - 1, 1_000_000_007]
    rows = [(i % 3, name + str(i)) for i, name in enumerate(names * 3)]
    table = columns(rows)
    cache = LabelCache()
    for shown in ([2, 0, 5], list(range(len(rows))), [], [7], [13, 10, 12, 14, 17]):
        counts = np.array(
            [numbers[row % len(numbers)] for row in shown], dtype=np.int64
        )
        made = tick(Release(np.array(shown, np.int64), counts, 1.0, None))
        # The span of counts is a difference without a sign.
        with np.errstate(over="ignore"):
            for key, value in snapshots(made, table, ["0", "1", "2"], cache):
                own = in_order(rows, shown, counts, key)
                assert b'"items":' + orjson.dumps(own) + b',"sd"' in value


@pytest.mark.parametrize("way", WAYS)
def test_items_that_fit_no_number_and_rows_without_a_rank_are_said(way: Any) -> None:
    """Truncated counts would sort wrongly and show a wrong number."""
    lengths, key_of, ranks = (
        np.ones(3, dtype=kind) for kind in (np.int16, np.int32, np.int64)
    )
    key_of[2] = 0
    ranks[1] = -1

    def made(rows: list[int], counts: list[int], keys: int = 3) -> int:
        given = (
            readonly_contiguous(np.array(each, dtype=np.int64))
            for each in (rows, counts)
        )
        known = map(readonly_contiguous, (key_of, ranks, lengths))
        numbers = np.empty(len(rows), dtype=np.int64)
        with np.errstate(over="ignore"):
            shift: int = way(items_as_numbers)(*given, *known, keys, numbers)[0]
        return shift

    assert made([0, 1], [5, 5]) == made([0, 3], [5, 5]) == NO_RANK
    assert made([0, 2], [5, 5 + 2**60 - 1]) == 61
    assert (
        made([0, 2], [5, 5 + 2**60])
        == made([0, 2], [5, 5 + 2**60 - 1], keys=4)
        == TOO_LONG
    )
    assert made([0, 2], [-(2**63), 2**63 - 1]) == TOO_LONG
    assert made([], []) == 0


def test_a_release_too_long_for_a_message_comes_in_pages_in_its_order() -> None:
    """A running histogram is written whole first, and cut only then."""
    names = [f"label-{i:03}" for i in range(200)]
    rows = [(0, name) for name in names]
    counts = np.arange(200) % 7
    values = pages(Release(np.arange(200), counts, 1.0, 5), columns(rows), 1_000)
    assert len(values) > 3 and max(map(len, values)) <= 1_000
    assert items_of(values) == in_order(rows, [*range(200)], counts, "0")


@pytest.mark.parametrize("max_bytes", [500, 700, 3_000, 900_000])
def test_pages_are_short_enough_and_hold_every_item_once(max_bytes: int) -> None:
    """Messages over Kafka's limit could never be published; items lost at page edges are errors."""
    labels = [("x" * (i % 90) + '"\n').encode() + b"%d" % i for i in range(300)]
    release = Items(
        np.zeros(300, np.int32), labels, np.arange(300, dtype=np.int64), 2.0, 5
    )
    values = pages(release, Ledger(), max_bytes)
    assert all(len(value) <= max_bytes for value in values)
    assert items_of(values) == [[labels[i].decode(), i] for i in range(299, -1, -1)]


def test_an_answer_stands_where_the_items_would() -> None:
    answers = Answers(
        {0: {"query": "max", "value": 12}, 1: {"query": "max", "value": 3}}, None
    )
    _, (key, value) = snapshots(tick(answers), Ledger(), ["s1", "s2"], LabelCache())
    body = json.loads(value)
    assert (key, body["query"], body["value"], body["sd"]) == ("s2", "max", 3, None)
    assert "items" not in body


def test_numbers_without_quantiles_have_their_edges_behind_the_items_in_pages_too() -> (
    None
):
    """Whole and paged snapshots have the same fields in the same order."""
    labels = Buckets((0, 10, 50)).labels
    table = columns([(0, label) for label in labels])
    release = Release(np.arange(4), np.array([1, 900, 50, 7]), 5.0, None)
    made = replace(tick(release), numeric=Numeric(Buckets((0, 10, 50)), ()))
    [whole] = pages(made, table, keys="s")
    items = b'"items":[["[0,10)",900],["[10,50)",50],[">=50",7],["<0",1]]'
    assert items + b',"edges":[0.0,10.0,50.0],"sd":5.0,' in whole
    values = pages(made, table, len(whole) - 1, "s")
    assert len(values) > 1
    assert all(json.loads(value)["edges"] == [0, 10, 50] for value in values)
    assert items_of(values) == json.loads(whole)["items"]
