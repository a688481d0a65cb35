"""A million labels in a tick cost a sketch in every partition, and a killed worker loses nothing."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mechanisms.misra_gries.sets import algorithm_4
from tests.worker.harness import Site, now_ms, sale, unk, until
from workers.pipeline.contributions import decode
from workers.pipeline.source_sketches import PREFIX

pytestmark = pytest.mark.waits

SIZE = 100
HOUR_MS = 3_600_000
PARTITIONS = 2
# In each half: events with labels of their own, and then events with a frequent one.
SETS = 250
NEW_LABELS = 1_000
FREQUENT = 10_000


def labels_of(partition: int, half: int) -> Iterator[list[str]]:
    """Yield the labels of each event: half a million new ones in every half, over two partitions."""
    for i in range(SETS):
        first = ((half * PARTITIONS + partition) * SETS + i) * NEW_LABELS
        yield [f"q{first + j}" for j in range(NEW_LABELS)]
        for j in range(FREQUENT // SETS):
            yield ["often"] if j % 4 else ["often", "seldom"]


def test_a_million_labels_are_sent_as_one_sketch_by_every_partition(
    bootstrap: str, tmp_path: Path
) -> None:
    """The worker is killed within the tick, after a commit, and begins again without its disk."""
    histogram = unk(
        mechanism="misra_gries_tick",
        release="pamg",
        size=SIZE,
        tick="1h",
        horizon=24,
        max_items=NEW_LABELS,
        epsilon=1.0,
        delta=1e-9,
        keys=["k"],
    )
    # Until this is changed, the clock does not close a tick that ended an hour ago.
    site = Site(
        bootstrap,
        tmp_path,
        [histogram],
        partitions=PARTITIONS,
        owners=1,
        events={"grace": "4h"},
    )
    at = now_ms() // HOUR_MS * HOUR_MS - 2 * HOUR_MS
    fed: list[list[list[str]]] = [[] for _ in range(PARTITIONS)]

    def produce(half: int) -> None:
        for partition, sets in enumerate(fed):
            more = list(labels_of(partition, half))
            events = (sale(labels, at + len(sets) + i) for i, labels in enumerate(more))
            site.produce(partition, events)
            sets += more

    state = f"{site.name}.contribute-state"

    def stored_by() -> set[int | None]:
        names = ((one.key() or b"", one.partition()) for one in site.read(state))
        return {partition for name, partition in names if name.startswith(PREFIX)}

    produce(0)
    with site.worker() as worker:
        until(lambda: len(stored_by()) == PARTITIONS, "sketches are stored")
        assert not site.contributed(), "nothing is sent before the tick has closed"
        worker.kill()
    shutil.rmtree(tmp_path / "data")
    produce(1)
    site.set("events", grace="1s")
    with site.running():
        site.wait_published(at + HOUR_MS - 1)
    expected = [algorithm_4(SIZE, sets) for sets in fed]
    sent = {
        what.label: n
        for what, n in site.contributed().items()
        if what.lane.end_ms(what.tick) == at + HOUR_MS
    }
    assert sent == dict(sum(map(Counter, expected), Counter()))
    rows = [
        section.rows
        for message in site.read(site.settings.contributions_topic)
        for section in decode(message.value() or b"").sections
        if section.lane.end_ms(section.tick) == at + HOUR_MS
    ]
    assert sum(rows) <= SIZE * PARTITIONS
    assert len(rows) == PARTITIONS
    exact = Counter(label for sets in fed for labels in sets for label in labels)
    assert len(exact) > 1_000_000
    lost = exact.total() / (SIZE + 1)
    [shown] = [one for one in site.snapshots() if one["end"] == at + HOUR_MS]
    found = dict(shown["items"])
    assert set(found) == {"often", "seldom"}
    for label, count in found.items():
        assert exact[label] - lost - 6 * shown["sd"] <= count
        assert count <= exact[label] + 6 * shown["sd"]
    site.assert_clean()
