"""Bad input, end to end: it goes to the rejects topic with its reason, and stops nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Site, known, now_ms, sale, unk, until

pytestmark = pytest.mark.slow

GOOD_BETWEEN = 5


def broken(at: int) -> list[tuple[object, str]]:
    """Return a record for each reason; `tests/events/test_reader.py` has more of each kind."""

    def event(**changes: Any) -> dict[str, Any]:
        made = sale(["a"], at) | changes
        return {name: value for name, value in made.items() if value is not ...}

    return [
        (None, "no value"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b'{"key":"k","items":["a"],"ts":NaN}', "not JSON"),
        (b"[" * 2_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (event(key=...), "missing field 'key'"),
        (event(key=7.5), "field 'key' is not a string, whole number or boolean"),
        (event(items=7.5), "field 'items' is not a string, list or object"),
        (
            event(items=["a", 7.5]),
            "field 'items' has an item that is not a string, whole number or boolean",
        ),
        (event(items={"a": -1}), "a count in 'items' is not a non-negative integer"),
        (
            event(items={"a": "1 kg"}),
            "a count in 'items' is a text that holds no number",
        ),
        (
            event(key="\ud83d"),
            "field 'key' is not Unicode text: it has an unpaired surrogate escape",
        ),
        (
            event(ts="yesterday"),
            "field 'ts' is not a time in ms: a text that holds no number",
        ),
        (event(ts="2026-11-22T10:00:00Z"), "field 'ts' is not a time in ms: ISO 8601?"),
        (event(ts=2**60), "field 'ts' is not a time in ms: nanoseconds?"),
        (event(ts=at + 3_600_000), "dated too far ahead"),
        (event(items=["ä" * 513]), "label too long"),
        (event(key="x" * 1_025), "label too long"),
        (event(note="x" * 20_000), "record too large"),
    ]


def test_every_kind_of_bad_record_is_rejected_with_its_reason_and_good_ones_around_it_count(
    cluster: str, tmp_path: Path
) -> None:
    """One bad producer must not stop the histograms of all others, nor lose a good event."""
    histograms = [unk(), known(max_items=3, max_count=5)]
    site = Site(
        cluster,
        tmp_path,
        histograms,
        partitions=2,
        owners=1,
        events={"max_bytes": 10_000},
    )
    at = now_ms()
    bad = broken(at)
    good = {
        "key": "k",
        "items": ["a", "a", "b"],
        "ts": at,
        "unknown": {"more": [1, "\ud83d"]},
    }
    for value, _ in bad:
        site.produce(1, [good] * GOOD_BETWEEN + [value], flush=False)
    site.produce(1, [good])
    with site.running() as worker:
        until(lambda: len(site.rejects()) >= len(bad), "all rejects")
        site.wait_published(at)
    assert "Traceback" not in worker.output()
    rejects = site.rejects()
    assert [headers["reason"] for _, headers in rejects] == [
        reason for _, reason in bad
    ]
    originals = [m.value() for m in site.read(site.topic)]
    for (value, headers), number in zip(rejects, range(len(bad)), strict=True):
        offset = number * (GOOD_BETWEEN + 1) + GOOD_BETWEEN
        assert headers == headers | {
            "topic": site.topic,
            "partition": "1",
            "offset": str(offset),
        }
        assert value == originals[offset]
    n = GOOD_BETWEEN * len(bad) + 1
    found = {
        (what.lane.max_count, what.label): count
        for what, count in site.contributed().items()
    }
    assert found == {(1, "a"): n, (1, "b"): n, (5, "a"): 2 * n, (5, "b"): n}
    site.assert_clean()
