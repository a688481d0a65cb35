"""Schemas come from a real registry: what it does not know or answer stops only what needs it, and loses nothing."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as Registered
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient

from tests.kafka.harness import wait_until
from tests.kafka.oauth import dripping
from tests.registry_server import RegistryServer
from workers.events import schemas as registries
from workers.events.schemas import Access, AlwaysOpen, Reference, Registry
from workers.runtime.metrics import Metrics

RECORD = '{{"type": "record", "name": "{}", "fields": [{{"name": "shop", "type": "string"}}]}}'
_names = iter(range(1_000_000))


class Closed(Exception):
    """The shard of a test was given up."""


class Shard:
    def __init__(self) -> None:
        self.closed = threading.Event()
        self.went_on = 0

    def check_open(self) -> None:
        if self.closed.is_set():
            raise Closed

    def report_progress(self) -> None:
        self.went_on += 1


def register(
    server: RegistryServer,
    text: str | None = None,
    kind: str = "AVRO",
    references: Any = (),
) -> int:
    """Register a schema under a subject of its own; return its id."""
    name = f"R{next(_names)}"
    schema = Registered(
        RECORD.format(name) if text is None else text, kind, list(references)
    )
    return int(SchemaRegistryClient({"url": server.url}).register_schema(name, schema))


def opened(
    server: RegistryServer, patience_s: float = 30.0, metrics: Metrics | None = None
) -> Registry:
    return Registry(Access(server.url, {"timeout": 5.0}, patience_s), metrics)


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Run a function beside the test; what it returned or raised is in the list when it is done."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function())
        except Exception as error:  # noqa: BLE001
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, result


def test_a_schema_comes_with_all_that_it_refers_to(registry: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    inner = RECORD.format("Inner")
    client.register_schema("inner", Registered(inner, "AVRO"))
    middle = '{"type": "record", "name": "Middle", "fields": [{"name": "i", "type": "Inner"}]}'
    client.register_schema(
        "middle", Registered(middle, "AVRO", [SchemaReference("Inner", "inner", 1)])
    )
    outer = '{"type": "record", "name": "Outer", "fields": [{"name": "m", "type": "Middle"}]}'
    number = register(
        registry, outer, references=[SchemaReference("Middle", "middle", 1)]
    )
    found = opened(registry).schema(number, AlwaysOpen())
    assert found is not None
    assert found.kind == "AVRO"
    assert [reference.name for reference in found.references] == ["Inner", "Middle"]
    assert isinstance(found.references[0], Reference)


def test_an_id_that_nobody_knows_is_waited_for_once_and_not_again(
    registry: RegistryServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: Counter[int] = Counter()
    fetched = Registry._fetch

    def counted(self: Registry, schema_id: int) -> Any:
        asked[schema_id] += 1
        return fetched(self, schema_id)

    monkeypatch.setattr(Registry, "_fetch", counted)
    monkeypatch.setattr(registries, "_FORGOTTEN_S", 600.0)
    schemas = opened(registry, patience_s=1.5)
    monkeypatch.setattr(registries, "_IMPATIENCE", 600.0)
    begun = time.monotonic()
    assert schemas.schema(900_001, AlwaysOpen()) is None
    assert time.monotonic() - begun > 1.4
    first = asked.pop(900_001)
    assert first > 1  # it was asked for again while it was waited for
    for number in (900_001, 900_002, 900_003, 2**31, 2**32 - 1):
        assert schemas.schema(number, AlwaysOpen()) is None
    assert asked == {900_002: 1, 900_003: 1}
    assert "knows no schema 900001" in caplog.text
    # What is registered is found all the same.
    assert schemas.schema(register(registry), AlwaysOpen()) is not None


def test_an_id_that_is_registered_while_it_is_waited_for_is_found(
    registry: RegistryServer,
) -> None:
    schemas = opened(registry)
    last = register(registry)
    thread, found = in_thread(lambda: schemas.schema(last + 1, AlwaysOpen()))
    time.sleep(0.6)
    assert not found
    assert register(registry) == last + 1
    thread.join(120)
    assert found
    assert found[0] is not None


def test_many_unknown_ids_are_not_asked_for(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "_REMEMBERED", 5)
    monkeypatch.setattr(registries, "_FORGOTTEN_S", 2.0)
    schemas = opened(registry, patience_s=0)
    number = register(registry)
    for made_up in range(5):
        assert schemas.schema(910_000 + made_up, AlwaysOpen()) is None
    assert schemas.schema(number, AlwaysOpen()) is None
    time.sleep(2.1)
    assert schemas.schema(number, AlwaysOpen()) is not None


def test_a_registry_that_is_away_stops_only_what_is_not_known(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="workers.events.schemas")
    metrics = Metrics()
    schemas = opened(registry, metrics=metrics)
    known = register(registry)
    new = register(registry)
    third = register(registry)
    assert schemas.schema(known, AlwaysOpen()) is not None
    registry.stop()
    try:
        assert schemas.schema(known, AlwaysOpen()) is not None
        shards = [Shard(), Shard()]
        waiting = [
            in_thread(lambda: schemas.schema(new, shards[0])),
            in_thread(lambda: schemas.schema(third, shards[1])),
        ]
        wait_until(lambda: min(shard.went_on for shard in shards) > 5, "both wait")
        assert not waiting[0][1]
        # A partition that is given up, or SIGTERM, ends the wait.
        shards[1].closed.set()
        waiting[1][0].join(120)
        assert isinstance(waiting[1][1][0], Closed)
    finally:
        registry.start()
    waiting[0][0].join(120)
    assert waiting[0][1]
    assert waiting[0][1][0] is not None
    wait_until(lambda: "answers again" in caplog.text, "it is said")
    assert caplog.text.count("does not answer") == 1
    assert (
        metrics.registry.get_sample_value("quietcount_schema_registry_waits_total") == 1
    )


def test_an_answer_that_says_nothing_about_the_id_is_waited_out(
    registry: RegistryServer, caplog: pytest.LogCaptureFixture
) -> None:
    number = register(registry)
    schemas = Registry(Access(registry.url + "/wrong", {"timeout": 5.0}))
    shard = Shard()
    thread, found = in_thread(lambda: schemas.schema(number, shard))
    wait_until(lambda: "does not answer (HTTP 404)" in caplog.text, "it is said")
    assert not found
    shard.closed.set()
    thread.join(120)


@pytest.mark.parametrize(
    ("drip", "said"),
    [(b" " * 65_536, "more than 1,000,000 bytes"), (b" ", "takes more than 1 s")],
)
def test_an_answer_without_end_is_given_up(
    drip: bytes,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client reads an answer to its end, which took all memory or hung its thread."""
    monkeypatch.setattr(registries, "_ANSWER_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(registries, "_ANSWER_S", 1.0)
    shard = Shard()
    with dripping(b"HTTP/1.1 200 OK\r\n\r\n", drip) as url:
        asking = Registry(Access(url, {"timeout": 5.0}))
        thread, result = in_thread(lambda: asking.schema(1, shard))
        wait_until(lambda: said in caplog.text, "it is given up, and asked again")
        shard.closed.set()
        thread.join()
    assert isinstance(result[0], Closed)
