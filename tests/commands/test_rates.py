"""Topics of a known rate: `init` and `check` estimate it alike, however its partitions are filled."""

import time
from pathlib import Path

import numpy as np
import pytest

from tests.worker.harness import Site, unk
from workers.commands.check.examine import examine
from workers.commands.check.sample import of_topics
from workers.commands.init.draft import SampleGuesses
from workers.commands.init.formats import decode_sample
from workers.commands.init.sample import sample_of
from workers.commands.rates import PartitionSample, estimated_records, event_rates

pytestmark = pytest.mark.slow

Times = list[list[int]]
SPAN_MS = 600_000
END_MS = time.time_ns() // 1_000_000 - 60_000
BEGIN_MS = END_MS - SPAN_MS


def even(*numbers: int) -> Times:
    """Return partitions with this many events each, evenly spread."""
    return [[BEGIN_MS + i * SPAN_MS // n for i in range(n)] for n in numbers]


def bursts() -> Times:
    """Batches of a hundred events within a few ms; the newest records are one of them."""
    starts = [BEGIN_MS + i * SPAN_MS // 30 for i in range(31)]
    return [[start + i // 20 for start in starts for i in range(100)] for _ in range(2)]


def one_late_burst() -> Times:
    """A partition whose few events all came at the end."""
    return [*even(6_000), [END_MS - 5 + i // 4 for i in range(20)]]


def one_wrong_date() -> Times:
    first, second = even(3_000, 3_000)
    return [[first[0] - 20 * 365 * 86_400_000, *first], second]


SHAPES: dict[str, tuple[Times, float]] = {
    "even": (even(3_000, 3_000, 3_000), 15.0),
    "partitions of unequal rate": (even(9_000, 300, 12), 15.52),
    "few events": (even(30, 3), 0.055),
    "bursts": (bursts(), 10.3),
    "one late burst": (one_late_burst(), 10.03),
    "one wrong date": (one_wrong_date(), 10.0),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_init_and_check_estimate_the_rate_of_a_topic(
    bootstrap: str, tmp_path: Path, shape: str
) -> None:
    partitions, truth = SHAPES[shape]
    site = Site(
        bootstrap, tmp_path, [unk(tick="1s", keys="public")], partitions=len(partitions)
    )
    for number, times in enumerate(partitions):
        events = [
            {"key": "k", "items": [f"p{i % 3}"], "ts": at} for i, at in enumerate(times)
        ]
        site.produce(number, events)
    sample = sample_of(site.connection, site.topic, 1_000)
    decoded = decode_sample([record.value for record in sample.records])
    draft = SampleGuesses(sample, decoded, END_MS + 60_000).draft()
    [found] = examine(site.settings, of_topics(site.settings, 1_000)).histograms
    assert found.expected is not None
    assert draft.rate == pytest.approx(truth, rel=0.1)
    assert found.expected.events == pytest.approx(truth, rel=0.1)


def test_parts_in_which_a_partition_is_read_are_one_sample(
    bootstrap: str, tmp_path: Path
) -> None:
    """Each part of a batch, cut by its items, was once taken for a partition with the whole rate."""
    site = Site(bootstrap, tmp_path, [unk(tick="1s", keys="public")], partitions=1)
    [times] = even(3_000)
    items = [f"p{i}" for i in range(300)]
    site.produce(0, [{"key": "k", "items": items, "ts": at} for at in times])
    [found] = examine(site.settings, of_topics(site.settings, 3_000)).histograms
    assert found.expected is not None
    assert found.expected.events == pytest.approx(5, rel=0.02)


def test_partitions_that_retention_shortened_count_in_their_own_time() -> None:
    long = np.linspace(0, 3_600_000, 1_000).astype(np.int64)
    short = np.linspace(3_000_000, 3_600_000, 1_000).astype(np.int64)
    samples = [
        PartitionSample(times=long, events=36_000.0, from_start=False),
        PartitionSample(times=short, events=60_000.0, from_start=False),
    ]
    assert event_rates(samples) == pytest.approx([10, 100], rel=0.05)


def test_no_rate_is_told_without_a_span_of_time() -> None:
    same = PartitionSample(
        times=np.array([5, 5], dtype=np.int64), events=2.0, from_start=True
    )
    none = PartitionSample(
        times=np.empty(0, dtype=np.int64), events=0.0, from_start=True
    )
    assert event_rates([same, none]) == [0.0, 0.0]
    assert event_rates([]) == []


def test_offsets_without_records_are_not_counted() -> None:
    """As between the markers of transactions of one record."""
    assert estimated_records(np.arange(9_000, 10_000, 2), 0, 10_000) == pytest.approx(
        5_000
    )
