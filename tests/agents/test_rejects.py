"""Rejects before they are committed: their memory is bounded, whatever the records are."""

import tracemalloc
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest

from tests.kafka.bombs import batch, columns, record
from workers.agents import source_shard as module
from workers.agents.source_shard import REJECTS_BYTES_MAX, Rejects
from workers.events.reading import Reject
from workers.kafka.records import Records
from workers.runtime.metrics import Metrics

pytestmark = pytest.mark.slow

MB = 1 << 20


class Place:
    log = ("events", 0)


def rejects() -> Rejects:
    return Rejects("t.rejects", cast(Any, Place()), Metrics())


def test_rejects_are_logged_with_counts_a_line_for_each_reason_at_most_every_30_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = rejects()

    def commit(*reasons: str, at_s: float) -> list[str]:
        caplog.clear()
        found.add(
            Records.of([None] * len(reasons)),
            [Reject(i, why) for i, why in enumerate(reasons)],
        )
        found.committed()
        found.warn(at_s)
        return [line.partition("records rejected: ")[2] for line in caplog.messages]

    assert commit(*["not JSON"] * 3, "no value", at_s=0.0) == [
        "no value (1); see topic t.rejects",
        "not JSON (3); see topic t.rejects",
    ]
    assert commit(*["not JSON"] * 4, at_s=29.0) == []
    assert commit(*["not JSON"] * 2, at_s=30.0) == ["not JSON (6); see topic t.rejects"]
    assert commit(at_s=99.0) == []


def peak_of(records: Records) -> tuple[int, Rejects]:
    """Return the most bytes that it takes to reject all records, and the rejects."""
    found = rejects()
    all_of_them = [Reject(i, "no value") for i in range(len(records))]
    tracemalloc.start()
    try:
        found.add(records, all_of_them)
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def test_what_python_adds_to_a_reject_is_counted() -> None:
    """A million nulls have no bytes of their own, and took 1.83 GB."""
    peak, found = peak_of(Records.of([None] * 60_000))
    assert found.full
    assert 0.5 * peak < found.nbytes < 2 * peak
    assert peak < 96 * MB
    few = rejects()
    few.add(Records.of([None] * 100), [Reject(i, "no value") for i in range(100)])
    assert not few.full


def test_headers_of_three_bytes_do_not_grow_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python takes fifty times as much for them: 30 MB of them were 1.6 GB."""
    monkeypatch.setattr(module, "_HEADERS_BYTES_MAX", 32 * MB)
    some = [(b"h", None)] * 2_000
    raw = batch(
        "zstd", chain.from_iterable(record(i, b"", None, some) for i in range(400)), 400
    )
    [part] = columns(raw).take(0, MB).parts()
    peak, found = peak_of(part.records)
    assert peak < module._HEADERS_BYTES_MAX + REJECTS_BYTES_MAX
    cut = np.array(
        [("truncated", b"true") in message.headers for message in found.messages]
    )
    assert not cut[0]
    assert cut[-1]


def test_a_record_of_headers_alone_is_not_taken_apart() -> None:
    raw = batch("none", record(0, b"", None, [(b"h", None)] * 1_000_000), 1)
    [part] = columns(raw).take(0, MB).parts()
    peak, found = peak_of(part.records)
    assert peak < 4 * MB
    assert ("truncated", b"true") in found.messages[0].headers
