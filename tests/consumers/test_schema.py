"""The schema of snapshots says what snapshots are: every real one satisfies it, and none that is a little wrong."""

import copy
import io
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, cast

import msgspec
import orjson
import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from tests import ROOT
from tests.consumers.scene import Scene
from tests.numbers import number_in
from workers.client.messages import Pages
from workers.client.reading import typed
from workers.client.schema import snapshot_schema
from workers.client.tables import SCHEMAS, Tables, as_text
from workers.commands.verify.tables import made_again, texts
from workers.events.reading import EARLIEST_MS
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import HistogramConfig, names_of
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS
from workers.replay.offline import replay
from workers.replay.sources import JsonLines
from workers.settings.settings import Settings, load

PER_ITEM = tuple(names_of(lambda about: about.per_item))

pytestmark = pytest.mark.waits

SELECTIONS = ("argmax", "top_k_select:2")
ORDER_STATISTICS = ("max", "min", "quantile:0.5", "top_k:2", *SELECTIONS, "histogram")

Document = dict[str, Any]
WINDOW: Document = {"ms": 60_000, "ticks": 6, "sd": 3.5}
QUANTILE: Document = {
    "q": 0.5,
    "bucket": "[1,2)",
    "value": 1.5,
    "low": 1.25,
    "high": None,
}


EXAMPLES = sorted((ROOT / "examples").rglob("*.toml"))
TICKS = 3


def events(settings: Settings) -> list[dict[str, object]]:
    """Return six events a tick under the configured field names, of several users at user level."""
    names = settings.events
    assert names.timestamp is not None
    found = []
    epochs = [
        config.tick_ms * (config.horizon_ticks or 1) for config in settings.histograms
    ]
    for config in settings.histograms:
        # Without a start: the first time after 2000 at which every histogram begins an epoch.
        start = -(-EARLIEST_MS // math.lcm(*epochs)) * math.lcm(*epochs)
        if config.start is not None:
            start = round(config.start.timestamp() * 1000)
        for i in range(6 * TICKS):
            event: dict[str, object] = {
                names.timestamp: start + i * config.tick_ms // 6,
                str(names.items): [f"p{i % 4}", "p1"],
            }
            if config.buckets is not None:
                event[str(names.items)] = number_in(
                    config.buckets, i % len(config.buckets.labels)
                )
            if config.sum is not None:
                event[config.sum.field] = round(7.305 * (i % 20) - 40, 3)
            if not names.key.startswith("$"):
                event[names.key] = (
                    config.keys[i % 2] if isinstance(config.keys, tuple) else "s1"
                )
            if names.user is not None:
                event[names.user] = f"u{i % 5}"
            found.append(event)
    return found


@cache
def schema() -> Validator:
    document = snapshot_schema()
    Draft202012Validator.check_schema(document)
    return cast(Validator, Draft202012Validator(document))


def made(settings: Settings) -> list[Document]:
    lines = io.BytesIO(
        "".join(json.dumps(event) + "\n" for event in events(settings)).encode()
    )
    found: list[bytes] = []
    source = JsonLines(settings, "events", lines)
    key = NoiseKey(bytes(range(32)))
    replay(settings, key, source, lambda snapshot: found.append(snapshot.value))
    return [json.loads(value) for value in found]


@cache
def real() -> dict[str, list[Document]]:
    """Of every example, and of one with every kind of query: snapshots by what they are of."""
    found = {}
    for path in EXAMPLES:
        given = load(path)
        found[str(path.relative_to(ROOT))] = made(given)
        if path.stem == "two_level_k":
            found["all queries"] = made(
                changed(given, lambda _: {"queries": ORDER_STATISTICS})
            )
        if all(
            one.mechanism in PER_ITEM
            and not (one.buckets or one.unique_users)
            and one.total_share is None
            for one in given.histograms
        ):
            found[f"parts in {path.stem}"] = made(
                changed(given, lambda _: {"split": 3})
            )
        if all(
            config.subtracts and not config.unique_users for config in given.histograms
        ):
            windowed = changed(
                given, lambda one: {"windows": (one.tick_ms, 5 * one.tick_ms)}
            )
            found[f"windows in {path.stem}"] = made(windowed)
        if path.parent.name == "mechanisms" and getattr(
            given.histograms[0], "domain", None
        ):
            found[f"numbers in {path.stem}"] = made(changed(given, with_buckets))
    return found


def changed(
    settings: Settings, change: Callable[[HistogramConfig], Document]
) -> Settings:
    configs = (
        msgspec.structs.replace(one, **change(one)) for one in settings.histograms
    )
    return msgspec.structs.replace(settings, histograms=tuple(configs))


def with_buckets(config: HistogramConfig) -> Document:
    """What makes it one over numbers; with quantiles where the mechanism says them."""
    buckets = Buckets(tuple(range(40)))
    quantiles = {"quantiles": (0.01, 0.5, 0.99)} if config.has_quantiles else {}
    return {"buckets": buckets, "domain": buckets.labels} | quantiles


def test_mechanisms_with_a_domain_say_the_edges_and_those_that_show_all_the_quantiles() -> (
    None
):
    said = {}
    for name, documents in real().items():
        if name.startswith("numbers in "):
            [fields] = {("edges" in one, "quantiles" in one) for one in documents}
            said[name.removeprefix("numbers in ")] = fields
    assert len(said) >= 9 and set(said.values()) == {(True, True), (True, False)}
    quantiles = {name for name, fields in said.items() if fields == (True, True)}
    assert quantiles == {"known_base", "known_gauss"}


def forms() -> Iterator[tuple[str, Document]]:
    seen = set()
    for name, documents in real().items():
        for document in documents:
            form = (document["mechanism"], *sorted(document))
            if form not in seen:
                seen.add(form)
                yield name, document


def test_the_schema_names_the_mechanisms_that_there_are() -> None:
    document = snapshot_schema()
    assert set(document["properties"]["mechanism"]["enum"]) == set(MECHANISMS)
    assert {document["mechanism"] for _, document in forms()} == set(MECHANISMS)


def test_the_file_in_the_docs_is_the_schema_for_the_mechanisms_that_it_names() -> None:
    """Readers in other languages take the file; `python -m tests.docs --write` writes it."""
    path = ROOT / "docs" / "snapshot.schema.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    known = set(written["properties"]["mechanism"]["enum"])
    new = set(MECHANISMS) - known

    def without_new(value: Document) -> Document:
        names = value.get("enum")
        if isinstance(names, list):
            value["enum"] = [name for name in names if name not in new]
        return value

    document = json.dumps(snapshot_schema())
    assert written == json.loads(document, object_hook=without_new)


def test_every_snapshot_of_every_example_satisfies_it() -> None:
    for name, documents in real().items():
        assert documents, name
        for document in documents:
            assert not [error.message for error in schema().iter_errors(document)], (
                name,
                document,
            )


def test_the_json_of_every_example_is_made_again_from_its_rows() -> None:
    """Else `verify` would find a fault in a clean export."""
    documents = chain.from_iterable(real().values())
    alone = [each for each in documents if each.get("parts", 1) == 1]
    values = [orjson.dumps(document) for document in alone]
    seen = [
        Pages().receive(document["histogram"], value)
        for document, value in zip(alone, values, strict=True)
    ]
    tables = Tables.of([typed(one) for one in seen if one is not None])
    rows = {}
    for table, names in SCHEMAS.items():
        columns = ", ".join(map(as_text, names))
        found = tables.sql(f"select {columns} from {table}").fetchall()
        rows[table] = texts(found)
    # DuckDB keeps the order of rows: first all items of the first tick.
    items = iter(rows["items"])
    for document, value, tick in zip(alone, values, rows["ticks"], strict=True):
        shown = [*islice(items, len(document.get("items", ())))]
        assert made_again(tick, shown) == value
    assert not [*items]


@pytest.mark.parametrize("histogram", ["items", "large", "parts", "answers"])
def test_what_a_worker_published_satisfies_it_page_by_page(
    scene: Scene, histogram: str
) -> None:
    documents = [
        json.loads(record.value() or b"") for record in scene.records[histogram]
    ]
    assert documents
    assert (histogram == "large") == any(
        document["pages"] > 1 for document in documents
    )
    for document in documents:
        assert schema().is_valid(document)


#: Of records within a snapshot.
SLIPS: dict[str, list[tuple[str, object]]] = {
    "guarantee": [
        ("rho", 0),
        ("epsilon", -1),
        ("delta", 1),
        ("unit", "day"),
        ("exact", 1),
    ],
    "window": [("ms", 0), ("ms", "1m"), ("from", 0.5), ("exact", 1)],
    "sum": [("step", 0), ("sd", 0), ("to", "9"), ("exact", 1)],
    "all_items": [("count", 1.5), ("sd", 0), ("exact", 1)],
}


def wrong(document: Document) -> Iterator[tuple[str, Document]]:
    """Everything that a slip in the writer could make of a snapshot, and its name."""
    for name in document:
        without = {other: value for other, value in document.items() if other != name}
        free = ("quantiles", "windows", "all_items", "previous_id", "for")
        if name not in free and (name != "edges" or "quantiles" in document):
            yield f"no {name}", without
        yield f"{name} is of another type", document | {name: {"a": 1}}
    yield "an unknown field", document | {"exact": 1}
    yield "an unknown mechanism", document | {"mechanism": "laplace"}
    for name in ("epoch", "tick", "part", "parts", "page", "pages"):
        yield f"{name} 0", document | {name: 0}
        yield f"{name} not whole", document | {name: 1.5}
    capitals = document["id"].upper().replace("0", "A").replace("1", "B")
    yield "id in capitals", document | {"id": capitals}
    yield "negative sd", document | {"sd": -1.0}
    yield "threshold not whole", document | {"threshold": 0.5}
    yield (
        "sd that it cannot have",
        document | {"sd": 1.0 if document["sd"] is None else None},
    )
    for name, slips in SLIPS.items():
        for slip in slips if name in document else ():
            yield (
                f"{name} with {slip}",
                document | {name: document[name] | dict([slip])},
            )
    yield "one edge", document | {"edges": [1]}
    if document["mechanism"] in (
        "unk_base",
        "limit_dom",
        "positive_gauss",
        "pay_what_you_get",
    ):
        yield "edges without a domain", document | {"edges": [1, 2]}
    if document["mechanism"] not in PER_ITEM:
        yield "parts of what cannot be split", document | {"part": 1, "parts": 2}
    about = MECHANISMS[document["mechanism"]].about
    if not about.has_quantiles and not about.subtracts_with:
        yield (
            "quantiles of some buckets",
            document | {"edges": [1, 2], "quantiles": [QUANTILE]},
        )
    if not about.subtracts and not about.subtracts_with:
        yield "windows of what cannot be subtracted", document | {"windows": [WINDOW]}
    window = (
        ("ms", 0),
        ("ms", "1m"),
        ("ticks", 0),
        ("ticks", 1.5),
        ("sd", 0),
        ("sd", None),
    )
    for slip in (*window, ("exact", 1)):
        yield f"a window with {slip}", document | {"windows": [WINDOW | dict([slip])]}
    yield "no windows", document | {"windows": []}
    name = document["histogram"]
    counted = {"ms": 60_000, "from": 0}
    if "window" in document:
        yield "a window and windows", document | {"windows": [WINDOW]}
        yield "a window of no series", document | {"histogram": name.partition(".")[0]}
        yield "a window of another mechanism", document | {"mechanism": "known_laplace"}
    else:
        yield "a window with epochs", document | {"window": counted}
        yield "a series without a window", document | {"histogram": f"{name}.1m"}
    quantile = (
        ("q", 1),
        ("q", 0),
        ("bucket", 3),
        ("value", "3"),
        ("low", "open"),
        ("exact", 3),
    )
    for slip in quantile:
        quantiles = {"quantiles": [QUANTILE | dict([slip])]}
        yield f"a quantile with {slip}", document | {"edges": [1, 2]} | quantiles
    if "sums" in document:
        for own in (
            [1.0],
            [1.0, None, 0.0],
            [1.0, 2.0, None, 3.0],
            [1.0, 2.0, 0.0, 3.0, 4.0],
        ):
            yield f"a sum {own}", document | {"sums": [own]}
    if "items" in document:
        yield "also an answer", document | {"query": "max", "value": 1}
        counts = (["tea", 1.5], ["tea", "1"], ["tea", 2**63])
        for item in (["tea"], ["tea", 1, 2], [1, 1], ["x" * 1025, 1], *counts):
            yield f"an item {str(item)[:20]}", document | {"items": [item]}
        yield "an item twice", document | {"items": [["tea", 1], ["tea", 1]]}
    else:
        yield "also items", document | {"items": []}
        yield "a threshold without counts", document | {"threshold": 3}
        several = {"answers", "labels"} & set(document) or isinstance(
            document.get("value"), list
        )
        if not several:
            yield "another page", document | {"pages": 2}
    for i, answer in enumerate(document.get("answers", [])):
        for change in ({"query": "mean"}, {"value": {"a": 1}}, {"exact": 1}):
            other = copy.deepcopy(document)
            other["answers"][i] = answer | change
            yield f"answer {i} with {change}", other


def test_none_that_is_a_little_wrong_satisfies_it() -> None:
    checked = 0
    for name, document in forms():
        for what, other in wrong(document):
            assert not schema().is_valid(other), (name, what, other)
            checked += 1
    assert checked > 17 * 40
