"""Stage 2 without Kafka: merges contributions of one owner partition into snapshots.

A pure function of its topic: no clock, no randomness. A tick is complete when every source
partition's watermark has reached its end. Until then its contributions wait (`waiting`). Every
message must continue its source's chain: gapless sequence numbers, and no tick that the source had
closed. So if stage 1 loses or duplicates events, the release stops instead of publishing them.

A source partition is one of the events topics; an owner partition is one of the contributions
topic, with a share of the stream keys. When there are more owners, keys are "handed over" to new
ones (`growth.owners`). A lane is a tick grid with bounds: histograms with equal ones share a lane's
contributions, in sections of one (lane, tick); lanes "of sums" add up numbers beside counts. A
"life" is the stored record of one generation, one set of settings, of a histogram. Offsets and
positions are those of messages in the contributions topic.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import OWNER, Message, Section, decode
from workers.pipeline.growth.owners import Grown, HandedOver, HandOvers, Owners
from workers.pipeline.growth.sources import refuse_other_count
from workers.pipeline.histogram import Histogram, HistogramProgress, removal_refusals
from workers.pipeline.signing import CHAINS, Chain, refuse_unsigned, stored_chains
from workers.pipeline.snapshots import Snapshot
from workers.pipeline.waiting import WAITING_BYTES_MAX, WaitingSections
from workers.pipeline.watermark import least_of
from workers.runtime.errors import StateRefused
from workers.runtime.gil_lock import GilLock
from workers.runtime.sizes import Change
from workers.settings.times import when

logger = logging.getLogger(__name__)

VERSION = 1
# Per transaction in a backlog.
TICKS_MAX = 500
BYTES_MAX = 8 << 20
# Ticks of one lane before it is another lane's turn.
TICKS_IN_A_ROW = 32
#: A shorter run of ticks without events is not worth a line in the log.
EMPTY_TICKS_TOLD = 10_000


# Returns the stored pairs under a key prefix, in key order.
Pairs = Callable[[bytes], Iterable[tuple[bytes, bytes]]]


class ReleaseProgress(msgspec.Struct, kw_only=True):
    """Progress of an owner partition, stored with every release.

    `position` follows the messages seen; reading resumes at `offset`, earlier while sections wait.
    `key` is the noise key's fingerprint. `watermarks`, `firsts` (time of the first event, ms) and
    `sequences` (number of the next message) are by source partition; None: it has closed no tick,
    or counted no event. `moves` has pairs of how many
    source partitions users are spread over, and the event time from which on. `owners` is how many
    owner partitions there were at first, `grown` how they have grown. `histograms` and `retired`
    have the lives of running and of ended generations, whose charges stay.
    """

    version: int
    offset: int
    position: int
    owners: int
    key: str
    watermarks: list[int | None]
    firsts: list[int | None]
    sequences: list[int]
    moves: list[tuple[int, int]] = []
    grown: Grown = ()
    histograms: dict[str, HistogramProgress]
    retired: list[tuple[str, HistogramProgress]]


@dataclass(slots=True)
class Released:
    """What one call of `release` has published.

    Before the next call, the histograms in `beginning` must be charged an epoch. `handed` goes to
    other owners, in the same transaction.
    """

    ticks: int
    snapshots: list[Snapshot]
    handed: list[tuple[int, HandedOver]] = field(default_factory=list)
    beginning: Sequence[Histogram] = ()


class TickSigner(Protocol):
    """Signs what `Merge` releases, in a chain of records by histogram: `signing.Signing`."""

    def sign(
        self,
        histogram: Histogram,
        tick: int,
        snapshots: Sequence[Snapshot],
        sections: Sequence[Section],
    ) -> Iterator[Snapshot]:
        """Yield further records, for the signatures topic: they sign a tick's `snapshots`.

        They commit to `sections` too, the contributions of which the tick was made.
        """

    def restore(
        self, chains: Mapping[str, Chain], histograms: Iterable[Histogram]
    ) -> None:
        """Continue stored chains of records, by histogram."""

    def changes(self) -> list[Change]:
        """Return what to store since the last call."""


class Merge:
    """Histograms of one owner partition, fed with its messages.

    Call `take` with each message, `reached` with the position read to, then `release`.
    """

    def __init__(
        self,
        histograms: Sequence[Histogram],
        *,
        key: NoiseKey,
        sources: int,
        owners: int,
        directory: Path | None = None,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        gil_lock: GilLock | None = None,
        signing: TickSigner | None = None,
    ) -> None:
        """`sources` and `owners` are how many there were at first; messages tell of later ones.

        `directory` is as in `WaitingSections`; the worker's shards share `gil_lock`. Without
        `signing` nothing is signed.
        """
        self.histograms = histograms
        self.key = key
        self.owners = owners
        # The histograms by lane, and those with sums by their lane of sums, too.
        self._lanes: dict[Lane, list[Histogram]] = {}
        self._of_sums: dict[Lane, list[Histogram]] = {}
        for histogram in histograms:
            self._lanes.setdefault(histogram.lane, []).append(histogram)
            if histogram.sum_lane is not None:
                self._of_sums.setdefault(histogram.sum_lane, []).append(histogram)
        # `ReleaseProgress` describes these and the other stored fields.
        self.watermarks: list[int | None] = [None] * sources
        self._firsts: list[int | None] = [None] * sources
        self._sequences = [0] * sources
        # The first position never taken before, and how far this process has read: after a restart
        # that is less, as messages of sections that wait are read again.
        self._position = 0
        self._read_to = 0
        self._moves: list[tuple[int, int]] = []
        self.grown: Grown = ()
        self._handed = HandOvers()
        self._retired: list[tuple[str, HistogramProgress]] = []
        self._deletions: list[Change] = []
        # The last tick up to which runs of empty ones have been logged.
        self._told: dict[Lane, int] = {}
        self.waiting = WaitingSections(directory, waiting_bytes_max)
        #: Whether `release` stops before the first tick of an epoch that is not charged yet.
        self.reserving = False
        self.gil_lock = gil_lock or GilLock()
        self._signing = signing

    def receive(self, value: bytes, offset: int) -> None:
        """Decode a message, and keep its sections."""
        self.take(decode(value), offset)

    def take(self, message: Message, offset: int) -> None:
        """Keep a message's sections; raise StateRefused for a broken chain or another tag key."""
        if message.key != self.key.fingerprint:
            raise StateRefused(
                f"contributions offset {offset}: written with another key than the key file holds: give every worker "
                "of this name the same key file"
            )
        if message.source == OWNER:
            self._take_handed(message, offset)
            return
        self._follow_growth(message, offset)
        if not 0 <= message.source < len(self.watermarks):
            raise StateRefused(
                f"contributions offset {offset}: source partition {message.source} of {len(self.watermarks)}: "
                "it has not joined; start a new worker name, or new generations on new internal topics"
            )
        # Earlier messages were checked before the restart; they are read again for what waits.
        if offset >= self._position:
            self._follow(message, offset)
        for part in message.sections:
            histograms = self._lanes.get(part.lane) or self._of_sums.get(part.lane)
            # Unless all that it is for was published before the restart.
            if histograms and any(
                h.next is None or h.next <= part.tick for h in histograms
            ):
                self.waiting.add(offset, part)

    def _take_handed(self, message: Message, offset: int) -> None:
        """Keep what another owner hands over, unless its histogram has begun.

        Then it has got that already, and the message is read again after a restart.
        """
        handed = message.handed
        if handed is None:
            raise StateRefused(f"contributions offset {offset}: an owner sent nothing")
        if handed.generation > self._begun(handed.histogram):
            self._handed.take(handed, message.page, message.pages, offset)

    def _follow_growth(self, message: Message, offset: int) -> None:
        """Learn from a message of further owner and source partitions.

        Source 0 tells of further owners; other sources may not know of the newest yet.
        """
        owners = Owners(self.owners) if message.owners is None else message.owners
        if message.source == 0 and len(owners.grown) > len(self.grown):
            self._grow(owners.grown, offset)
        # What the sender knows must be the beginning of what is known here.
        if owners != Owners(self.owners, self.grown[: len(owners.grown)]):
            raise StateRefused(
                f"contributions offset {offset}: source partition {message.source} knows other numbers of owner partitions"
            )
        join(self.watermarks, message)
        # How many source partitions were added: the other columns by source grow with them.
        joined = len(self.watermarks) - len(self._sequences)
        if joined and message.users_from is not None:
            self._moves.append((message.sources, message.users_from))
        self._firsts += [None] * joined
        self._sequences += [0] * joined

    def _grow(self, grown: Grown, offset: int) -> None:
        """Learn from a message that there will be more owner partitions.

        Raise StateRefused if they are to hold for ticks that were counted without them.
        """
        for number, at_ms in grown[len(self.grown) :]:
            closed = any(mark is not None and mark > at_ms for mark in self.watermarks)
            if closed or self.waiting.any_after(at_ms):
                raise StateRefused(
                    f"contributions offset {offset}: there are {number} owner partitions since a time that was "
                    "counted before: a worker's clock is wrong. Take a new worker name (a new stream, charged again)"
                )
        self._know(grown)

    def _know(self, grown: Grown) -> None:
        """Tell the histograms how many owners there will be, and from when on.

        `grown` has all growth, what is known already first.
        """
        for number, at_ms in grown[len(self.grown) :]:
            for histogram in self.histograms:
                histogram.grow(number, at_ms)
        self.grown = grown

    def _take_over(self) -> None:
        """Begin histograms with the stream keys handed over to them, where all pages are here.

        Then their first tick is known, so earlier contributions are dropped.
        """
        for histogram in self.histograms:
            if histogram.next is None:
                handed = self._handed.whole(histogram.name, histogram.life.generation)
                if handed is not None:
                    histogram.take_over(handed)
        for lane in self._lanes:
            self._drop_early(lane)
        self._handed.drop(self._begun)

    def _begun(self, name: str) -> int:
        """Return the newest generation of a histogram that has begun or ended; 0 if none has."""
        ended = [life.generation for known, life in self._retired if known == name]
        running = [
            h.life.generation for h in self.histograms if h.name == name and h.next
        ]
        return max([0, *ended, *running])

    def _follow(self, message: Message, offset: int) -> None:
        """Check that a message continues its source's chain, and advance that source.

        A message must have the next sequence number, add to no tick that its source had closed, and
        know of all growth that concerns its ticks.
        """
        source = message.source
        if message.sequence != self._sequences[source]:
            raise StateRefused(
                f"contributions offset {offset}: source partition {source} sent number {message.sequence} "
                f"where {self._sequences[source]} follows: its progress was lost or restored from a copy. "
                "Continuing would count events twice or not at all; start over with "
                "another worker name, or all internal topics deleted together (either is a new stream, charged again)"
            )
        closed_ms = self.watermarks[source]
        owners_known = () if message.owners is None else message.owners.grown
        # Growth that the source does not know, as (time from which it holds, what it is).
        moved = [
            (from_ms, f"users moved to {sources} partitions")
            for sources, from_ms in self._moves
            if message.sources < sources
        ]
        grown = [
            (from_ms, f"there are {number} owner partitions")
            for number, from_ms in self.grown[len(owners_known) :]
        ]
        for part in message.sections:
            end_ms = part.lane.end_ms(part.tick)
            if closed_ms is not None and end_ms <= closed_ms:
                raise StateRefused(
                    f"contributions offset {offset}: source partition {source} adds to a tick that it had closed"
                )
            bounds_users = part.lane.max_items_per_user is not None
            for from_ms, what in (*(moved if bounds_users else ()), *grown):
                if end_ms > from_ms:
                    raise StateRefused(
                        f"contributions offset {offset}: source partition {source} does not know that {what}: its worker's "
                        "clock is wrong, or it could not see the topic for minutes. "
                        "Take a new worker name (a new stream, charged again)"
                    )
        self._sequences[source] += 1
        # The last page of a commit: all that it adds to ticks is here.
        if message.page == message.pages:
            self.watermarks[source] = message.watermark
            self._firsts[source] = message.first

    def reached(self, position: int) -> None:
        """Note that all messages before this offset were taken."""
        self._read_to = position
        self._position = max(self._position, position)

    def release(
        self,
        *,
        ticks_max: int = TICKS_MAX,
        after_tick: Callable[[], object] = lambda: None,
        by_lane: bool = False,
        until_ms: int | None = None,
    ) -> Released:
        """Release complete ticks in order, until none is left or a limit is passed.

        If the next tick begins an epoch that must be charged before, stop there and say so.
        Nothing returned may be published before `changes` and `progress` are durable with it.

        Args:
            ticks_max: the most ticks of one call.
            after_tick: called after every tick.
            by_lane: release a lane's ticks in a row, while its rows are in the processor's caches,
                unless epochs are charged before their first tick; else ticks are ordered by end.
            until_ms: release only ticks that end by then.
        """
        released = Released(0, [])
        complete = self.complete_ms
        # After a restart, sections that wait must have been read again first.
        if complete is None or self._read_to < self._position:
            return released
        if until_ms is not None:
            complete = min(complete, until_ms)
        if self._handed:
            self._take_over()
        until = {lane: self._complete_in(lane, complete) for lane in self._lanes}
        for lane in self._lanes:
            self._begin(lane, until[lane])
            self._tell_empty(lane, until[lane])
        in_a_row = TICKS_IN_A_ROW if by_lane and not self.reserving else 1
        size = 0
        with self.gil_lock.for_pieces() as turn:
            for lane, tick in self._due_ticks(until, in_a_row):
                if released.ticks >= ticks_max or size >= BYTES_MAX:
                    break
                histograms = [h for h in self._lanes[lane] if h.next == tick]
                if self.reserving:
                    released.beginning = [h for h in histograms if not h.reserved]
                    if released.beginning:
                        break
                sections = self.waiting.get(lane, tick)
                rows = sum(section.rows for section in sections)
                turn.begin_piece(self._rows(lane) + rows)
                snapshots = self._step(lane, tick, histograms, sections)
                size += sum(len(snapshot.value) for snapshot in snapshots)
                released.snapshots += snapshots
                for histogram in histograms:
                    released.handed += histogram.handed
                    histogram.handed = []
                released.ticks += 1
                after_tick()
        return released

    def end_after(self, at_ms: int) -> int:
        """Return the first time from `at_ms` on at which a tick of any lane ends."""
        return min(
            at_ms + (lane.start_ms - at_ms) % lane.tick_ms for lane in self._lanes
        )

    def _due_ticks(
        self, until: Mapping[Lane, int], in_a_row: int
    ) -> Iterator[tuple[Lane, int]]:
        """Yield complete ticks in release order, each to be released before the next is asked for.

        `until` is the time up to which each lane is complete. Up to `in_a_row` ticks of one lane
        come before the lanes are compared again: 1 keeps the strict order.
        """
        while due := {
            lane: order
            for lane, end_ms in until.items()
            if (order := self._order_if_due(lane, end_ms)) is not None
        }:
            lane = min(due, key=due.__getitem__)
            for _ in range(in_a_row):
                tick = _next_tick(self._lanes[lane])
                assert tick is not None, "it is due"
                yield lane, tick
                # The caller has released it: the lane's next tick is another one.
                if self._order_if_due(lane, until[lane]) is None:
                    break

    def _step(
        self,
        lane: Lane,
        tick: int,
        histograms: Sequence[Histogram],
        sections: Sequence[Section],
    ) -> list[Snapshot]:
        """Return the snapshots of histograms whose next tick this is; drop what they counted.

        `sections` are those of their lane that waited for the tick; lanes of sums have their own.
        """
        counts = [section.contributions() for section in sections]
        sum_sections = {
            sum_lane: self.waiting.get(sum_lane, tick)
            for sum_lane in _sum_lanes(histograms)
        }
        # Unpacked once, for all histograms that share a lane of sums.
        sums: dict[Lane, list[Contributions]] = {
            sum_lane: [section.contributions(of_sums=True) for section in found]
            for sum_lane, found in sum_sections.items()
        }
        snapshots: list[Snapshot] = []
        for histogram in histograms:
            sum_lane = histogram.sum_lane
            own_sums = [] if sum_lane is None else sums[sum_lane]
            published = list(histogram.step([*counts, *own_sums]))
            snapshots += published
            if self._signing is not None:
                own_sections = [] if sum_lane is None else sum_sections[sum_lane]
                counted = [*sections, *own_sections]
                snapshots += self._signing.sign(histogram, tick, published, counted)
        for counted_lane in (lane, *sum_sections):
            self.waiting.drop(counted_lane, tick)
        return snapshots

    def _order_if_due(self, lane: Lane, until: int) -> tuple[object, ...] | None:
        """Return a lane's sort key in release order; None if its next tick is incomplete.

        Lanes are released by the end of their next tick; ties are broken by all that a lane is
        made of, so every worker releases in the same order.
        """
        # A histogram that waits for what is handed over to it needs all contributions from its
        # first tick on, which a step of the others would drop.
        if any(h.takes_over and h.next is None for h in self._lanes[lane]):
            return None
        tick = _next_tick(self._lanes[lane])
        if tick is None or (end := lane.end_ms(tick)) > until:
            return None
        # The last three fields of `Lane` come first. The others are numbers or None, which cannot
        # be compared with numbers.
        numbers = [number or 0 for number in lane[:-3]]
        return end, lane.view, lane.split, lane.sketch, *numbers

    def _rows(self, lane: Lane) -> int:
        """Return how many items a lane's histograms have, a measure of a tick's work."""
        return sum(histogram.columns.n for histogram in self._lanes[lane])

    def _begin(self, lane: Lane, complete: int) -> None:
        """Start the histograms of a lane that have not begun, once their first tick is complete.

        `complete`, ms, is the time up to which ticks are complete.
        """
        # Histograms that take over begin when keys are handed over to them instead.
        new = [h for h in self._lanes[lane] if h.next is None and not h.takes_over]
        # The time of the first event that any source has counted.
        first_ms = min(
            (first for first in self._firsts if first is not None), default=None
        )
        if first_ms is None or not new:
            return
        for histogram in new:
            grid = histogram.grid
            # Once the first event's tick is complete, no source can tell of an earlier event.
            if grid.end(max(1, grid.tick_at(first_ms))) <= complete:
                histogram.start_at(histogram.first_tick(first_ms))
        self._drop_early(lane)

    def _tell_empty(self, lane: Lane, until: int) -> None:
        """Log a long run of ticks without events, once, before they are published.

        `until`, ms, is the time up to which the lane's ticks are complete.
        """
        histograms = self._lanes[lane]
        first = _next_tick(histograms)
        last = (until - lane.start_ms) // lane.tick_ms
        told = self._told.get(lane, 0)
        if first is None or last - first < EMPTY_TICKS_TOLD or last <= told:
            return
        begin = max(first, told + 1)
        counted = self.waiting.ticks({lane, *_sum_lanes(histograms)})
        # A run ends before each tick with events, and after the last tick.
        ends = [*sorted(tick for tick in counted if begin <= tick <= last), last + 1]
        for end in ends:
            if end - begin >= EMPTY_TICKS_TOLD:
                logger.warning(
                    "histogram %s: %s ticks in a row, from %s to %s, have no event, and are published all the "
                    "same: if no events are missing there, are the times before and after right? A wider tick, "
                    "or a later start, publishes fewer",
                    ", ".join(histogram.name for histogram in histograms),
                    f"{end - begin:,}",
                    when(lane.end_ms(begin - 1)),
                    when(lane.end_ms(end - 1)),
                )
            begin = end + 1
        self._told[lane] = last

    def _drop_early(self, lane: Lane) -> None:
        """Drop sections of ticks before the first that any histogram of the lane publishes.

        They were kept until that tick was known.
        """
        histograms = self._lanes[lane]
        starts = [h.next for h in histograms if h.next is not None]
        # One that has not begun may still need any tick.
        if len(starts) == len(histograms):
            for counted_lane in (lane, *_sum_lanes(histograms)):
                self.waiting.drop_before(counted_lane, min(starts))

    def _complete_in(self, lane: Lane, complete: int) -> int:
        """Return the time up to which a lane's ticks are complete, from that of all lanes.

        A hook: here they are the same; at the end of its input, replay completes each lane's last
        tick.
        """
        return complete

    @property
    def complete_ms(self) -> int | None:
        """Time up to which ticks are complete; None while a source has no watermark."""
        return least_of(self.watermarks)

    def changes(self) -> list[Change]:
        """Return store changes since the last call, except the progress record.

        They must become durable in the transaction that publishes the released snapshots.
        """
        changes = self._deletions
        self._deletions = []
        # An upper bound: at most all rows are encoded.
        with self.gil_lock.for_rows(sum(map(self._rows, self._lanes))):
            for histogram in self.histograms:
                changes += histogram.changes()
        if self._signing is not None:
            changes += self._signing.changes()
        return changes

    def progress(self) -> ReleaseProgress:
        """Return the record to store with a release, from which `restore` resumes."""
        return ReleaseProgress(
            version=VERSION,
            # What still waits must be read again: sections, and keys handed over.
            offset=min(
                self.waiting.first_offset(self._position),
                self._handed.first_offset(self._position),
            ),
            position=self._position,
            owners=self.owners,
            key=self.key.fingerprint.hex(),
            watermarks=self.watermarks,
            firsts=self._firsts,
            sequences=self._sequences,
            moves=self._moves,
            grown=self.grown,
            histograms={h.name: h.life for h in self.histograms},
            retired=self._retired,
        )

    def check(self, progress: ReleaseProgress) -> None:
        """Raise StateRefused for a stored record that these settings cannot resume from."""
        if progress.version != VERSION:
            raise StateRefused(
                f"stored progress has version {progress.version}; this worker knows {VERSION}: upgrade it"
            )
        if progress.key != self.key.fingerprint.hex():
            raise StateRefused(
                "the key file holds another key than the one this state was made with: restore the old key file"
            )
        sources = len(self.watermarks)
        stored_sources = len(progress.watermarks)
        # `sources` are those of the first commit, so more are fine: they joined since.
        if stored_sources < sources:
            refuse_other_count("the events topic", sources, stored_sources)
        refuse_other_count("the contributions topic", self.owners, progress.owners)
        for refusal in removal_refusals(
            progress.histograms, [h.name for h in self.histograms]
        ):
            raise StateRefused(refusal)
        for histogram in self.histograms:
            life = progress.histograms.get(histogram.name)
            generation = histogram.config.generation
            used = _used(progress, histogram.name)
            if life is not None and life.generation == generation:
                histogram.check(life)
            elif used and generation <= max(used):
                raise StateRefused(
                    f"histogram {histogram.name!r}: generation = {generation}, but generation {max(used)} was already used: "
                    f"set generation = {max(used) + 1}"
                )

    def restore(
        self, progress: ReleaseProgress, items: Pairs, *, begin_ms: int | None = None
    ) -> None:
        """Resume from the stored state, which `check` accepts; start and end generations.

        Generations that end may have published up to `begin_ms`, so their replacements begin after
        it. With None, they have published no further than the stored watermarks.
        """
        self.check(progress)
        chains = stored_chains(items(CHAINS))
        if self._signing is None:
            refuse_unsigned(chains, self.histograms)
        else:
            self._signing.restore(chains, self.histograms)
        self.watermarks = progress.watermarks
        self._firsts = progress.firsts
        self._sequences = progress.sequences
        self._retired = list(progress.retired)
        self._moves = list(progress.moves)
        self._know(progress.grown)
        self._position = progress.position
        self._read_to = progress.offset
        for histogram in self.histograms:
            life = progress.histograms.get(histogram.name)
            if life is not None and life.generation == histogram.config.generation:
                histogram.restore(life, items(histogram.prefix.encode()))
                continue
            # The state does not have this generation. If it replaces another, it begins after
            # everything that the other may have published, else where the state is.
            replaces = begin_ms is not None and _used(progress, histogram.name)
            if life is not None:
                self._retire(histogram.name, life, items, begin_ms)
            start_ms = begin_ms if replaces else self.complete_ms
            if start_ms is not None:
                tick = max(1, histogram.grid.tick_at(start_ms))
                if histogram.takes_over:
                    histogram.life.begin = tick
                else:
                    histogram.start_at(tick)
        names = {histogram.name for histogram in self.histograms}
        for name, life in progress.histograms.items():
            # It left the settings; `check` has made sure that nothing of it was published.
            if name not in names:
                self._retire(name, life, items, begin_ms)

    def _retire(
        self, name: str, life: HistogramProgress, items: Pairs, end_ms: int | None
    ) -> None:
        """End a generation that may have published up to `end_ms`; delete its stored pairs.

        None: no tick was complete. `items` reads the store.
        """
        if end_ms is not None:
            life.until = end_ms
        self._retired.append((name, life))
        self._deletions += [
            (key, None) for key, _ in items(f"{name}/{life.generation}/".encode())
        ]


def join(watermarks: list[int | None], message: Message) -> None:
    """Append to `watermarks` the source partitions that a message of source partition 0 tells of.

    Each begins with the message's watermark: nothing that ends later is released yet, since a tick
    waits for source partition 0, too.
    """
    if message.source == 0:
        watermarks += [message.watermark] * (message.sources - len(watermarks))


def _next_tick(histograms: Sequence[Histogram]) -> int | None:
    """Return the first tick that any of these histograms publishes next; None if none has begun."""
    return min((h.next for h in histograms if h.next is not None), default=None)


def _sum_lanes(histograms: Sequence[Histogram]) -> list[Lane]:
    """Return the lanes of sums of these histograms, each once."""
    return list(dict.fromkeys(h.sum_lane for h in histograms if h.sum_lane is not None))


def _used(progress: ReleaseProgress, name: str) -> list[int]:
    """Return the generations of a histogram that the stored state knows, also ended ones."""
    lives = *progress.retired, *progress.histograms.items()
    return [life.generation for known, life in lives if known == name]
