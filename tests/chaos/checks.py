"""Checks of everything that a site has published."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec

from tests.kafka.harness import read
from tests.worker.harness import Site


def compare(found: Any, wanted: Any) -> None:
    wrong = [(what, found[what], n) for what, n in wanted.items() if found[what] != n]
    extra = [(what, n) for what, n in found.items() if n and what not in wanted]
    assert not wrong and not extra, (
        f"{len(wrong)} wrong of {len(wanted)}, such as {wrong[:3]}; {len(extra)} too many, such as {extra[:3]}; "
        f"{found.total()} counted, {wanted.total()} produced"
    )


def one_tick_once(snapshots: list[dict[str, Any]]) -> int:
    """Assert that no ticks of a stream key overlap and no page repeats; return the number of ticks."""
    pages: dict[tuple[str, str, int, int, int], list[int]] = defaultdict(list)
    for s in snapshots:
        place = s["histogram"], s["key"], s["start"], s["end"]
        pages[*place, s.get("part", 1)].append(s["page"])
    for of_part, numbers in pages.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), (
            f"{of_part}: pages {numbers}"
        )
    places = sorted({place[:4] for place in pages})
    for before, after in pairwise(places):
        assert before[:2] != after[:2] or before[3] <= after[2], (
            f"{before} and {after} overlap"
        )
    return len({(histogram, end) for histogram, _, _, end in places})


def uncommitted_agree(site: Site, partitions: int) -> int:
    """Assert that readers of uncommitted records see one set of bytes for every tick; return the
    number of records that they see.
    """
    seen: dict[tuple[str, bytes | None, int, int, int], set[bytes]] = defaultdict(set)
    records = 0
    settings = site.settings
    for topic in map(settings.output_topic, settings.histograms):
        for partition in range(partitions):
            for message in read(site.connection, topic, partition, "read_uncommitted"):
                value = message.value() or b"{}"
                page = msgspec.json.decode(value, type=dict[str, Any])
                number = page.get("part", 1), page["page"]
                seen[topic, message.key(), page["end"], *number].add(value)
                records += 1
    for place, values in seen.items():
        assert len(values) == 1, (
            f"{place}: {len(values)} sets of bytes, also in aborted transactions"
        )
    return records
