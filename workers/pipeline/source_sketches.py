"""Stage 1's sketches: what a source partition counted in each open tick, in bounded memory.

A lane with `sketch` counts not in exact sums but in a Privacy-Aware Misra-Gries sketch (PAMG) for
each tick and stream key, of at most `sketch` counters. It is fed event by event, in the order of
the partition: an event's items are one step (`arrays.set_sketches`). Its counters are sent once,
when the tick has closed: commits in between only store it. So what an owner gets depends neither
on where commits end nor on restarts, and grows neither with labels nor with events.

Stored in the state of the source partition, under names that have no dot:

    sketch/<lane>/<tick>/<block>    up to KEYS_A_BLOCK stream keys, in the order met, with their
                                    counters: a version byte, and `StoredSketches` as MessagePack

A commit writes the blocks with a key that was fed since the last one, in pages where they are
long; the commit that sends a tick deletes its blocks. What has no lane any more is deleted too: it
has missed events since.
"""

import secrets
from collections.abc import Iterator, Mapping
from hashlib import blake2b

import msgspec
import numpy as np

from workers.arrays import set_sketches as kernels
from workers.arrays.number_blocks import pack, unpack
from workers.arrays.tallies import LabeledEvents
from workers.arrays.texts import Texts, readonly_contiguous
from workers.arrays.types import Codes, Longs, Words
from workers.events.columns import EventColumns
from workers.events.vocabulary import Vocabulary
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import with_capacity
from workers.pipeline.ledger_blocks import (
    UNDECODABLE,
    StoredPairs,
    joined_pages,
    split_pages,
)
from workers.pipeline.tallies import ALL_SEEN, Counted, Tally
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import Change

PREFIX = b"sketch/"
VERSION = 1
KEYS_A_BLOCK = 64
_FIRST_ROWS = 1 << 6
_LENGTH = np.dtype("<u2")


class StoredSketches(msgspec.Struct, array_like=True, frozen=True):
    """A stored block: sketches of some stream keys of one tick. Sensitive.

    `place` is the first key's, in the order in which the tick's keys were met; `number` how many
    counters each of `keys` has. `lengths` of the labels, `labels` and `counts`, which have
    2^`width` bytes each, are columns with an element for each counter.
    """

    lane: Lane
    tick: int
    place: int
    keys: list[str]
    number: list[int]
    lengths: bytes
    labels: bytes
    width: int
    counts: bytes

    def __repr__(self) -> str:
        return f"StoredSketches(tick {self.tick}, {len(self.keys)} keys)"

    def columns(self) -> tuple[Texts, Longs]:
        """Return labels and counts of all keys; raise StateRefused if they do not fit together."""
        try:
            lengths = np.frombuffer(self.lengths, dtype=_LENGTH)
            if not 0 <= self.width <= 3:
                raise ValueError(f"width = {self.width}")
            counts = unpack(self.width, self.counts).astype(np.int64)
            labels = Texts.from_lengths(self.labels, lengths)
        except ValueError as error:
            raise StateRefused(f"stored sketches are damaged: {error}") from error
        counters = sum(self.number), len(counts), len(labels)
        if (
            min(counters) != max(counters)
            or len(self.number) != len(self.keys)
            or min(self.number, default=0) < 0
            or max(self.number, default=0) > self.lane.sketch
            or (counts < 1).any()
        ):
            raise StateRefused("stored sketches are damaged: columns that do not fit")
        return labels, counts


# Made at import, by one thread: see `contributions`.
_DECODER = msgspec.msgpack.Decoder(StoredSketches)


class TickSketches:
    """The sketches of one tick, by stream key, in the codes of two vocabularies. Sensitive."""

    def __init__(
        self, size: int, key_names: Vocabulary, label_names: Vocabulary
    ) -> None:
        """Begin without counters; the sketch of each stream key has at most `size`."""
        self.key_names = key_names
        self.label_names = label_names
        #: Names under which it is stored.
        self.stored: set[bytes] = set()
        self._size = size
        # Room for a few counters, and for no stream key. `SketchTable` describes the arrays.
        self._table = kernels.SketchTable(
            secret=np.uint64(int.from_bytes(secrets.token_bytes(8))),
            slots=np.full(2 * _FIRST_ROWS, -1, dtype=np.int32),
            pairs=np.empty(_FIRST_ROWS, dtype=np.uint64),
            heights=np.empty(_FIRST_ROWS, dtype=np.int64),
            next_row=np.empty(_FIRST_ROWS, dtype=np.int32),
            first=np.empty(0, dtype=np.int32),
            counters=np.empty(0, dtype=np.int64),
            lowered=np.empty(0, dtype=np.int64),
            changed=np.empty(0, dtype=np.bool_),
            place=np.empty(0, dtype=np.int32),
            met=np.empty(0, dtype=np.int32),
            used=np.array([0, 0, -1]),  # no keys, no rows, no row to use again
        )

    def __repr__(self) -> str:
        return f"TickSketches({len(self)} counters)"

    def __len__(self) -> int:
        return int(self._table.counters.sum())

    @property
    def keys(self) -> int:
        """The number of stream keys that were met, those without counters included."""
        return int(self._table.used[kernels.KEYS])

    def feed(
        self, columns: EventColumns, events: Longs, amounts: Longs, max_items: int
    ) -> None:
        """Feed `events` (k,) that the view includes, in this order, each as the set of its labels.

        `events` number rows of `columns`, which has all events of the batch. `amounts` (m,) are the
        labels' counts, or (0,): all 1. A label with 0 is not in the set, nor is one beyond an
        event's first `max_items`.
        """
        seen = ALL_SEEN if columns.included is None else columns.included
        parts = seen, columns.keys, columns.ends, columns.labels, amounts
        batch = LabeledEvents(*map(readonly_contiguous, parts))
        # Every label may be new, and all labels of an event are entered before counters are
        # dropped.
        labels_max = min(len(columns.labels), len(events) * max_items)
        self._make_room(labels_max, max_items)
        kernels.feed_sets(
            readonly_contiguous(events), batch, max_items, self._size, self._table
        )

    def tally(self) -> Tally:
        """Return the counters as a tally, which stage 1 can send as if they were exact counts."""
        _, pairs, counts = self._counters(0, self.keys)
        keys = self._table.met[: self.keys]
        return Tally.from_counts(self.key_names, self.label_names, keys, pairs, counts)

    def changes(self, lane: Lane, tick: int) -> Iterator[Change]:
        """Yield the blocks, in pages, that have changed since the last call.

        `lane` and `tick` are those of the sketches, for the blocks' names.
        """
        # The codes of the keys, in the order met: every KEYS_A_BLOCK of them form a block.
        met = self._table.met[: self.keys]
        changed = np.unique(np.flatnonzero(self._table.changed[met]) // KEYS_A_BLOCK)
        self._table.changed[met] = False
        for block in changed.tolist():
            start = block * KEYS_A_BLOCK
            stop = min(start + KEYS_A_BLOCK, self.keys)
            number, pairs, counts = self._counters(start, stop)
            labels = self.label_names.texts(_labels_of(pairs))
            width, packed = pack(counts)
            stored = StoredSketches(
                lane=lane,
                tick=tick,
                place=start,
                keys=[self.key_names.name(code) for code in met[start:stop].tolist()],
                number=number.tolist(),
                lengths=labels.lengths.astype(_LENGTH).tobytes(),
                labels=labels.text.tobytes(),
                width=width,
                counts=packed,
            )
            value = bytes((VERSION,)) + msgspec.msgpack.encode(stored)
            name = b"%b%08x" % (_prefix(lane, tick), block)
            for page, content in split_pages(name, value):
                self.stored.add(page)
                yield page, content

    def put(self, stored: StoredSketches) -> None:
        """Take back a stored block, whose keys follow those that are here; else StateRefused."""
        labels, counts = stored.columns()
        if stored.place != self.keys:
            raise StateRefused(
                f"stored sketches: stream key {stored.place} follows {self.keys} keys; a block is missing"
            )
        keys = self.key_names.codes_of(Texts.of(key.encode() for key in stored.keys))
        number = np.array(stored.number, dtype=np.int64)
        self._put(keys, number, labels, counts)
        self._table.changed[:] = False

    def _put(self, keys: Codes, number: Longs, labels: Texts, counts: Longs) -> None:
        """Enter counters: of each of the `keys` the next `number` of labels, with their counts."""
        codes = self.label_names.codes_of(labels)
        self._make_room(len(codes), 0)
        kernels.put_counters(
            readonly_contiguous(keys),
            readonly_contiguous(number),
            readonly_contiguous(codes),
            readonly_contiguous(counts),
            self._table,
        )

    def translated(
        self, key_names: Vocabulary, label_names: Vocabulary
    ) -> "TickSketches":
        """Return the same sketches in the codes of these vocabularies: theirs were full."""
        if (self.key_names, self.label_names) == (key_names, label_names):
            return self
        met = self._table.met[: self.keys]
        number, pairs, counts = self._counters(0, self.keys)
        keys = key_names.codes_of(self.key_names.texts(met))
        labels = self.label_names.texts(_labels_of(pairs))
        other = TickSketches(self._size, key_names, label_names)
        other.stored = self.stored
        other._put(keys, number, labels, counts)
        other._table.changed[keys] = self._table.changed[met]
        return other

    def _counters(self, start: int, stop: int) -> tuple[Longs, Words, Longs]:
        """Return the counters of some stream keys, key by key: of `met[start:stop]` of the table.

        That is how many each key has (keys,), and the (key, label) pairs and counts of all (m,).
        """
        table = self._table
        room = int(table.counters[table.met[start:stop]].sum())
        number = np.empty(stop - start, dtype=np.int64)
        pairs = np.empty(room, dtype=np.uint64)
        counts = np.empty(room, dtype=np.int64)
        kernels.take_counters(start, stop, table, number, pairs, counts)
        return number, pairs, counts

    def _make_room(self, more: int, excess: int) -> None:
        """Make room for `more` counters, or for as many as there can be, if that is less.

        A sketch has at most `size` counters, and `excess` ones of the event that is being fed,
        until the kernel drops some. Also make room for all keys of the vocabulary.
        """
        table = self._table
        keys = len(self.key_names)
        if keys > len(table.first):
            # Until a key is met, its values are 0, or -1 for no row and no place.
            known = len(table.first)
            table = table._replace(
                first=with_capacity(table.first, keys),
                counters=with_capacity(table.counters, keys),
                lowered=with_capacity(table.lowered, keys),
                changed=with_capacity(table.changed, keys),
                place=with_capacity(table.place, keys),
                met=with_capacity(table.met, keys),
            )
            table.first[known:] = -1
            table.place[known:] = -1
        rows = min(len(self) + more, keys * self._size + excess)
        if rows > len(table.pairs):
            table = table._replace(
                pairs=with_capacity(table.pairs, rows),
                heights=with_capacity(table.heights, rows),
                next_row=with_capacity(table.next_row, rows),
            )
        self._table = table
        # A hash table, at most half full.
        if 2 * rows > len(table.slots):
            slots = np.full(1 << (2 * rows - 1).bit_length(), -1, dtype=np.int32)
            self._table = table._replace(slots=slots)
            kernels.fill_sketch_slots(self._table)


class Sketches:
    """The sketches of all open ticks of one source partition, by lane and tick. Sensitive."""

    def __init__(self) -> None:
        self._open: dict[tuple[Lane, int], TickSketches] = {}
        # Names of what is stored and of no use any more.
        self._deletions: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._open)

    def __repr__(self) -> str:
        return f"Sketches({len(self._open)} ticks)"

    def add(
        self,
        columns: EventColumns,
        lane: Lane,
        tick: int,
        events: Longs,
        amounts: Longs,
    ) -> None:
        """Feed one tick's `events` (k,) of a batch, in this order, to the sketches of a lane.

        `amounts` are as in `TickSketches.feed`.
        """
        names = columns.key_names, columns.label_names
        sketches = self._open.get((lane, tick))
        if sketches is None:
            sketches = TickSketches(lane.sketch, *names)
        # A batch may have new vocabularies: full ones are replaced.
        sketches = sketches.translated(*names)
        sketches.feed(columns, events, amounts, lane.max_items)
        if sketches.keys:  # else the view skips all of them
            self._open[lane, tick] = sketches

    def take(self, until_ms: int | None) -> list[Counted]:
        """Return the sketches of ticks that end up to this time (None: all), and forget them."""
        taken = [
            (lane, tick)
            for lane, tick in self._open
            if until_ms is None or lane.end_ms(tick) <= until_ms
        ]
        counted: list[Counted] = []
        for lane, tick in taken:
            sketches = self._open.pop((lane, tick))
            self._deletions |= sketches.stored
            counted.append((lane, tick, sketches.tally()))
        return counted

    def changes(self) -> list[Change]:
        """Return what the next commit stores, and regard it as stored: deletions, changed blocks.

        Called after `take` for the same commit: a tick that is sent and still stored would be sent
        again after a restart.
        """
        found: list[Change] = [(name, None) for name in sorted(self._deletions)]
        self._deletions = set()
        for (lane, tick), sketches in self._open.items():
            found += sketches.changes(lane, tick)
        return found

    def restore(self, stored: StoredPairs | None, lanes: Mapping[bytes, Lane]) -> None:
        """Replace the sketches by the stored ones of `lanes` (by `lane_name`).

        The next commit deletes those of other lanes: the settings changed, and they missed events.
        Raise StateRefused if a block is missing or damaged.
        """
        self._open = {}
        self._deletions = set()
        pairs = {} if stored is None else dict(stored.items(PREFIX))
        keys = Vocabulary()
        labels = Vocabulary()
        for name, value in joined_pages(pairs):
            # sketch/<lane>/<tick>/<block>
            lane = lanes.get(name.encode()[len(PREFIX) :].partition(b"/")[0])
            if lane is None:
                continue
            block = _decode(value)
            if block.lane != lane:
                raise StateRefused(f"stored sketches: {name} is of another lane")
            of_tick = self._open.setdefault(
                (lane, block.tick), TickSketches(lane.sketch, keys, labels)
            )
            of_tick.put(block)
        # All stored names of a tick that goes on: they are deleted when it is sent, the others now.
        kept = set[bytes]()
        for (lane, tick), sketches in self._open.items():
            prefix = _prefix(lane, tick)
            sketches.stored = {name for name in pairs if name.startswith(prefix)}
            kept |= sketches.stored
        self._deletions = pairs.keys() - kept


def lane_name(lane: Lane) -> bytes:
    """Return a lane's part of the names of its stored sketches."""
    text = msgspec.json.encode(lane)
    return blake2b(text, digest_size=8, person=b"qc-lane").hexdigest().encode()


def _prefix(lane: Lane, tick: int) -> bytes:
    return b"%b%b/%016x/" % (PREFIX, lane_name(lane), tick)


def _labels_of(pairs: Words) -> Longs:
    """Return the codes of the labels of pairs, which are the lower 32 bits."""
    return (pairs & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _decode(value: bytes) -> StoredSketches:
    """Return stored sketches; StateRefused if another version wrote them, or they are damaged."""
    if value[:1] != bytes((VERSION,)):
        raise StateRefused(
            "stored sketches are of another version: were they written by a newer one?"
        )
    try:
        return _DECODER.decode(value[1:])
    except UNDECODABLE as error:
        raise StateRefused(f"stored sketches cannot be read: {error}") from error
