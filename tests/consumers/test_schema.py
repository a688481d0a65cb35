"""docs/snapshot.schema.json says what snapshots are: every real one satisfies it, and none that is a little wrong."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from tests import ROOT
from tests.consumers.scene import Scene
from tests.privacy.plan.test_examples import EXAMPLES, events
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS
from workers.replay.offline import replay
from workers.replay.sources import JsonLines
from workers.settings.settings import Settings, load

pytestmark = pytest.mark.waits

ORDER_STATISTICS = [
    "max",
    "min",
    "quantile:0.5",
    "top_k:2",
    "argmax",
    "top_k_select:2",
    "histogram",
]

Document = dict[str, Any]
WINDOW: Document = {"ms": 60_000, "ticks": 6, "sd": 3.5}
QUANTILE: Document = {"q": 0.5, "bucket": "[1,2)", "value": 1.5, "low": 1.25, "high": None}


@cache
def schema() -> Validator:
    """The schema, itself checked."""
    document = json.loads((ROOT / "docs" / "snapshot.schema.json").read_text())
    Draft202012Validator.check_schema(document)
    return cast(Validator, Draft202012Validator(document))


def made(settings: Settings) -> list[Document]:
    """Snapshots of a few events."""
    lines = io.BytesIO("".join(json.dumps(event) + "\n" for event in events(settings)).encode())
    found: list[Document] = []
    replay(
        settings,
        NoiseKey(bytes(range(32))),
        JsonLines(settings, "events", lines),
        lambda snapshot: found.append(json.loads(snapshot.value)),
    )
    return found


@cache
def real() -> dict[str, list[Document]]:
    """Of every example, and of one with every kind of query: snapshots by what they are of."""
    found = {str(path.relative_to(ROOT)): made(load(path)) for path in EXAMPLES}
    [queries] = [path for path in EXAMPLES if path.stem == "two_level_k"]
    settings = load(queries)
    configs = tuple(
        msgspec.structs.replace(config, queries=tuple(ORDER_STATISTICS))
        for config in settings.histograms
    )
    for path in EXAMPLES:
        given = load(path)
        if all(config.subtracts for config in given.histograms):
            windowed = (
                msgspec.structs.replace(one, windows=(one.tick_ms, 5 * one.tick_ms))
                for one in given.histograms
            )
            found[f"windows in {path.stem}"] = made(
                msgspec.structs.replace(given, histograms=tuple(windowed))
            )
        settings_of_numbers = given
        if path.parent.name == "mechanisms" and getattr(
            settings_of_numbers.histograms[0], "domain", None
        ):
            found[f"numbers in {path.stem}"] = made(with_buckets(settings_of_numbers))
    return found | {"all queries": made(msgspec.structs.replace(settings, histograms=configs))}


def with_buckets(settings: Settings) -> Settings:
    """The same over numbers; with quantiles where the mechanism says them."""
    buckets = Buckets(tuple(range(40)))
    changes: dict[str, Any] = {"buckets": buckets, "domain": buckets.labels}
    if settings.histograms[0].shows_all:
        changes["quantiles"] = (0.01, 0.5, 0.99)
    return msgspec.structs.replace(
        settings,
        histograms=tuple(
            msgspec.structs.replace(config, **changes) for config in settings.histograms
        ),
    )


def test_every_mechanism_with_a_domain_says_the_edges_and_those_that_show_it_all_the_quantiles() -> (
    None
):
    said = {
        name.removeprefix("numbers in "): {
            ("edges" in one, "quantiles" in one) for one in documents
        }
        for name, documents in real().items()
        if name.startswith("numbers in ")
    }
    assert len(said) >= 9
    assert set(map(frozenset, said.values())) == {
        frozenset({(True, True)}),
        frozenset({(True, False)}),
    }
    assert {name for name, fields in said.items() if (True, True) in fields} == {
        "known_base",
        "known_gauss",
    }


def forms() -> Iterator[tuple[str, Document]]:
    """One snapshot of each mechanism and set of fields."""
    seen = set()
    for name, documents in real().items():
        for document in documents:
            form = (document["mechanism"], *sorted(document))
            if form not in seen:
                seen.add(form)
                yield name, document


def test_the_schema_names_the_mechanisms_that_there_are() -> None:
    document = json.loads((ROOT / "docs" / "snapshot.schema.json").read_text())
    assert set(document["properties"]["mechanism"]["enum"]) == set(MECHANISMS)
    assert {document["mechanism"] for _, document in forms()} == set(MECHANISMS)


def test_every_snapshot_of_every_example_satisfies_it() -> None:
    for name, documents in real().items():
        assert documents, name
        for document in documents:
            assert not [error.message for error in schema().iter_errors(document)], (name, document)


@pytest.mark.parametrize("histogram", ["items", "large", "answers"])
def test_what_a_worker_published_satisfies_it_page_by_page(scene: Scene, histogram: str) -> None:
    documents = [json.loads(record.value() or b"") for record in scene.records[histogram]]
    assert documents
    assert (histogram == "large") == any(document["pages"] > 1 for document in documents)
    for document in documents:
        assert schema().is_valid(document)


def wrong(document: Document) -> Iterator[tuple[str, Document]]:
    """Everything that a slip in the writer could make of a snapshot, and its name."""
    for name in document:
        without = {other: value for other, value in document.items() if other != name}
        if name not in ("quantiles", "windows") and (name != "edges" or "quantiles" in document):
            yield f"no {name}", without
        yield f"{name} is of another type", document | {name: {"a": 1}}
    yield "an unknown field", document | {"exact": 1}
    yield "an unknown mechanism", document | {"mechanism": "laplace"}
    for name in ("epoch", "tick", "page", "pages"):
        yield f"{name} 0", document | {name: 0}
        yield f"{name} not whole", document | {name: 1.5}
    yield (
        "id in capitals",
        document | {"id": document["id"].upper().replace("0", "A").replace("1", "B")},
    )
    yield "negative sd", document | {"sd": -1.0}
    yield "threshold not whole", document | {"threshold": 0.5}
    yield "sd that it cannot have", document | {"sd": 1.0 if document["sd"] is None else None}
    for name, value in (("rho", 0), ("epsilon", -1), ("delta", 1), ("unit", "day"), ("exact", 1)):
        yield (
            f"guarantee with {name} = {value}",
            document | {"guarantee": document["guarantee"] | {name: value}},
        )
    yield "one edge", document | {"edges": [1]}
    if document["mechanism"] in ("unk_base", "limit_dom", "positive_gauss", "pay_what_you_get"):
        yield "edges without a domain", document | {"edges": [1, 2]}
    if document["mechanism"] not in ("known_base", "known_gauss", "meta"):
        yield "quantiles of some buckets", document | {"edges": [1, 2], "quantiles": [QUANTILE]}
    if document["mechanism"] not in ("known_base", "unk_base", "sparse_gumb", "meta"):
        yield "windows of what cannot be subtracted", document | {"windows": [WINDOW]}
    slips: list[Document] = [
        {"ms": 0},
        {"ms": "1m"},
        {"ticks": 0},
        {"ticks": 1.5},
        {"sd": 0},
        {"sd": None},
        {"exact": 1},
    ]
    for slip in slips:
        yield f"a window with {slip}", document | {"windows": [WINDOW | slip]}
    yield "no window", document | {"windows": []}
    changes: list[Document] = [
        {"q": 1},
        {"q": 0},
        {"bucket": 3},
        {"value": "3"},
        {"low": "open"},
        {"exact": 3},
    ]
    for change in changes:
        yield (
            f"a quantile with {change}",
            document | {"edges": [1, 2], "quantiles": [QUANTILE | change]},
        )
    if "items" in document:
        yield "also an answer", document | {"query": "max", "value": 1}
        for item in (
            ["tea"],
            ["tea", 1, 2],
            ["tea", 1.5],
            ["tea", "1"],
            [1, 1],
            ["tea", 2**63],
            ["x" * 1025, 1],
        ):
            yield f"an item {str(item)[:20]}", document | {"items": [item]}
        yield "an item twice", document | {"items": [["tea", 1], ["tea", 1]]}
    else:
        yield "also items", document | {"items": []}
        yield "a threshold without counts", document | {"threshold": 3}
        if not {"answers", "labels"} & set(document) and not isinstance(
            document.get("value"), list
        ):
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
