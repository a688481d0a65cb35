"""Snapshots as records, of a topic or of a file with one a line, checked one after the other.

A large snapshot is published in several pages; where a stream key's items are spread over owner
partitions, each owner publishes a part, which is signed by itself. A series is what one topic of
histograms has. Signatures form a chain for each histogram and owner, numbered in the order in which
the owner published.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import orjson

from workers.client.messages import InvalidSnapshot, decode
from workers.client.verifying import NotAsSigned, SignedHistory, name_of
from workers.pipeline.signatures import one_page


@dataclass(slots=True)
class Checked:
    """What was found as signed in one series; times are ends of ticks, ms."""

    snapshots: int = 0
    #: From before the first signature, about which nothing is said.
    early: int = 0
    #: The first and the last tick, by stream key.
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last tick of all stream keys; None if there are none."""
        if not self.ends:
            return None
        firsts, lasts = zip(*self.ends.values(), strict=True)
        return min(firsts), max(lasts)

    def add(self, key: str, end: int, *, is_signed: bool) -> None:
        """Count a snapshot of a stream key, of the tick that ends at `end`.

        An unsigned one is from before the first signature: all others were refused.
        """
        if not is_signed:
            self.early += 1
            return
        self.snapshots += 1
        first, last = self.ends.get(key, (end, end))
        self.ends[key] = min(first, end), max(last, end)


class Records:
    """The records of snapshots, in the order in which they were published."""

    def __init__(self, history: SignedHistory) -> None:
        """Begin with no record; `history` has all signatures."""
        self._history = history
        self.checked: dict[str, Checked] = defaultdict(Checked)
        # By series, stream key and part: the pages of a snapshot so far.
        self._pages: dict[tuple[str, str, int], list[bytes]] = {}
        # Number of the last signature that was matched, by (series, chain, `log` of `take`).
        self._last_number: dict[object, int] = {}

    def take(
        self,
        series: str,
        value: bytes,
        where: str,
        log: object = None,
        key: bytes | None = None,
        time_ms: int | None = None,
    ) -> None:
        """Check a record, one page, and with the last page the snapshot against what was signed.

        `log` is what it was read from in the order of publication, a partition or None for a file;
        `where` names its place there for messages. `key` and `time_ms` are Kafka's of the record,
        None where it has none.
        """
        try:
            # One page, as readers see it.
            frame = decode(series, value)
        except InvalidSnapshot as error:
            raise NotAsSigned(f"{where}: {error}") from None
        place = series, frame.key, frame.end
        if key is not None and key != frame.key.encode():
            raise NotAsSigned(f"{where}: {name_of(place)}: its record has another key")
        if time_ms is not None and time_ms != frame.end:
            raise NotAsSigned(f"{where}: {name_of(place)}: its record has another time")
        part = series, frame.key, frame.part
        pages = self._pages.setdefault(part, [])
        if frame.page != len(pages) + 1:
            raise NotAsSigned(
                f"{where}: {name_of(place)}: page {frame.page} where {len(pages) + 1} follows"
            )
        # Only whole snapshots are signed: another spelling of a page would not change them.
        if frame.pages > 1 and orjson.dumps(orjson.loads(value)) != value:
            raise NotAsSigned(
                f"{where}: {name_of(place)}: not spelled as a worker does"
            )
        pages.append(value)
        if frame.page < frame.pages:
            return
        del self._pages[part]
        signed = self._history.match(place, one_page(pages), where)
        # None: from before the first signature.
        if signed is not None:
            in_order = series, signed.chain, log
            if signed.number <= self._last_number.get(in_order, 0):
                raise NotAsSigned(f"{where}: {name_of(place)}: out of order")
            self._last_number[in_order] = signed.number
        self.checked[series].add(frame.key, frame.end, is_signed=signed is not None)

    def finish(self) -> None:
        """Raise for the first snapshot that lacks pages, once all records were taken."""
        if self._pages:
            (series, key, part), pages = min(self._pages.items())
            raise NotAsSigned(
                f"histogram {series!r}, key {key!r}, part {part}: the last snapshot has only {len(pages)} of its pages"
            )
