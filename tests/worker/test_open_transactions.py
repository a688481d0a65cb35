"""A producer that leaves a transaction open: the worker says what it hides, and counts it afterwards."""

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.forked import QUICKER
from tests.worker.harness import Site, Worker, now_ms, sale, unk, until
from tests.worker.test_metrics import ask, ready, total

pytestmark = pytest.mark.waits

BEHIND = 50
OPEN_S = 3.0
PLAIN: dict[str, Any] = {"worker": {"metrics_port": 0}}
REKEY: dict[str, Any] = {
    "worker": {"metrics_port": 0, "user_partitions": 1},
    "privacy": {"unit": "user", "rekey": True},
    "events": {"user": "who"},
}


def open_transaction(site: Site, place: int, event: dict[str, object]) -> Producer:
    """Leave a transaction open in a log, with events of another producer behind it."""
    topic, partition = site.places[place]
    # As long as a broker allows: a busy machine must not end it first.
    patient = {"transaction.timeout.ms": 900_000}
    producer = site.connection.producer(f"{site.name}-upstream-{place}", **patient)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, json.dumps(event).encode(), partition=partition)
    assert producer.flush(60) == 0
    return producer


def says_so(worker: Worker, site: Site, places: dict[int, int]) -> bool:
    """Tell whether a worker names all logs and first hidden offsets, everywhere."""
    status, body = ask(worker, "/readyz")
    names = {
        f"{topic}[{number}]": place for place, (topic, number) in enumerate(site.places)
    }
    for name, place in names.items():
        if place not in places:
            if f"{name}: a transaction is open" in body:
                return False
            continue
        held = (
            f"{name}: a transaction is open at offset {places[place]} and hides up to "
        )
        if held not in body or held not in worker.output():
            return False
    return status == 503 and total("quietcount_held_up_seconds", worker) >= OPEN_S


@pytest.mark.parametrize("changes", [PLAIN, REKEY], ids=["plain", "rekey"])
def test_a_transaction_that_stays_open_is_named_until_it_ends(
    bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    """Also if the log was never readable, and after a restart; then what it hid counts."""
    monkeypatch.setenv(QUICKER, f"workers.kafka.offsets.OPEN_S={OPEN_S}")
    histogram = unk(max_items_per_user=1) if changes is REKEY else unk()
    users = count()

    def event(label: str) -> dict[str, object]:
        return sale([label], now_ms(), who=f"u{next(users)}")

    site = Site(bootstrap, tmp_path, [histogram], topics=(1, 2), owners=1, **changes)
    for place in (0, 1):
        site.produce(place, [event("before")])
    hidden = {0: 1, 2: 0}
    with site.running() as worker:
        until(lambda: ready(worker), "it is at work")
        upstream = {
            place: open_transaction(site, place, event("held")) for place in hidden
        }
        for place in (0, 1, 2):
            site.produce(place, [event("behind") for _ in range(BEHIND)])
        until(lambda: says_so(worker, site, hidden), "it names both logs")
        for place in hidden:
            topic, partition = site.places[place]
            where = {"topic": topic, "partition": str(partition)}
            assert (
                total("quietcount_consumer_lag_records", worker, **where) == BEHIND + 1
            )
            assert total("quietcount_consumer_lag_seconds", worker, **where) >= 1
        assert ask(worker, "/healthz")[0] == 200, "a restart would not help"
    with site.running() as worker:
        until(
            lambda: says_so(worker, site, hidden), "it names both logs after a restart"
        )
        ended = [site.places[place] for place in hidden]
        upstream[0].commit_transaction(60)
        until(lambda: says_so(worker, site, {2: 0}), "one is over")
        upstream[2].abort_transaction(60)
        until(lambda: ready(worker), "both are over")
        assert (
            total("quietcount_consumer_lag_records", worker, topic=site.places[0][0])
            == 0
        )
        # One look may find that both have ended, and names them in one line.
        until(
            lambda: all(
                re.search(rf"no longer held up .*{re.escape(name)}", worker.output())
                for name in (f"{topic}[{number}]" for topic, number in ended)
            ),
            "it says that both are over",
        )
        until(lambda: site.counted()["behind"] == 3 * BEHIND, "what was hidden counts")
    assert site.counted() == {"before": 2, "held": 1, "behind": 3 * BEHIND}
