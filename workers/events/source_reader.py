"""Read one source partition: from records to columns of codes, with a reason for each reject."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tallies import ADDED_UP, FIRST
from workers.arrays.types import Codes, Longs
from workers.events.columns import (
    NO_AMOUNTS,
    EventColumns,
    Events,
    LabelEncoder,
    Names,
    user_digests,
)
from workers.events.log import Format
from workers.events.reader import (
    AHEAD,
    EARLIEST_MS,
    EARLY,
    EventReader,
    EventSpans,
    Part,
    Reject,
    with_unit,
)
from workers.events.view_kernels import UNSEEN
from workers.kafka.placement import Placement
from workers.kafka.records import Records
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.views import Path
from workers.settings.settings import ALL_STREAM_KEY

MISPLACED = "user's records belong in another partition"
NOT_DECLARED = "key not declared"
NO_RECORD_TIME = "record without a time"
# Kafka uses -1 for no timestamp; `rekey` forwards such records with 1, since 0 means now.
_NO_RECORD_TIME_MAX = 1
_REASONS = ("", MISPLACED, AHEAD, NOT_DECLARED, EARLY)
# Neither counted nor a reject, and must not close a tick.
_PASSED_OVER = len(_REASONS)

Declared = Mapping[str, frozenset[str] | None]
A = TypeVar("A", bound=np.generic)


class SourceReader:
    """Reads the batches of one source partition, in order. Not thread-safe."""

    def __init__(
        self,
        reader: EventReader,
        declared: Declared,
        placement: Placement | None = None,
        fmt: Format | None = None,
        earliest_ms: int = EARLIEST_MS,
    ) -> None:
        """`declared`, per view: the stream keys that its histograms serve; None means all."""
        self._reader = reader
        self._placement = placement
        self._fmt = fmt
        self._earliest_ms = earliest_ms
        layout = reader.layout
        self._names = [Names() for _ in layout.keys]
        self._declared: list[int | None] = [None for _ in layout.keys]
        for place in range(len(layout.keys)):
            views = zip(layout.names, layout.key_of, strict=True)
            served = [declared[name] for name, of in views if of == place]
            given = [keys for keys in served if keys is not None]
            if len(given) == len(served):
                first = frozenset().union(*given)
                self._declared[place] = len(first)
                self._names[place] = Names(first)
        of_fields: dict[Path, Names] = {}
        self._labels = [
            of_fields.setdefault(items.path, Names())
            if items.edges is None
            else Names(Buckets(items.edges).labels)
            for items in layout.items_of
        ]
        self._encoders = [LabelEncoder(names) for names in self._labels]
        #: Records of the last part that went to the general reader.
        self.declined = 0

    def read(
        self, records: Records, latest_ms: int | None = None
    ) -> Iterator[tuple[Events, list[Reject], int]]:
        """Decode a batch by `Part`; reject events after `latest_ms`: they would close ticks."""
        for spans, rejects, stop in self.spans(records):
            yield *self.encode(spans, rejects, latest_ms), stop

    def spans(self, records: Records) -> Iterator[Part]:
        """Yield a batch's parts, to `encode` in order. Changes no state: any thread may do it."""
        return self._reader.read(records, self._fmt)

    def decode_all(self, records: Records, row: int) -> object:
        return self._reader.decode_all(records, row, self._fmt)

    def read_objects(self, objects: Sequence[object]) -> tuple[Events, list[Reject]]:
        return self.encode(*self._reader.read_objects(objects))

    def encode(
        self, spans: EventSpans, rejects: list[Reject], latest_ms: int | None = None
    ) -> tuple[Events, list[Reject]]:
        """Encode events as columns of codes; add those refused here to the rejects."""
        self.declined = spans.declined
        layout = self._reader.layout
        keys = [self._keys(place, spans) for place in range(len(layout.keys))]
        for names in self._labels:
            names.begin()
        labels = [self._codes(place, spans) for place in range(len(self._labels))]
        refused = self._refused(spans, keys, latest_ms)
        users = None if spans.users is None else user_digests(spans.data, spans.users)
        index = spans.index
        times = spans.times
        good = None
        if refused.any():
            bad = np.flatnonzero((refused != 0) & (refused != _PASSED_OVER))
            rows = zip(
                index[bad].tolist(),
                refused[bad].tolist(),
                times[bad].tolist(),
                strict=True,
            )
            rejects += [Reject(row, self._reason(why, time)) for row, why, time in rows]
            rejects.sort(key=lambda reject: reject.index)
            good = np.flatnonzero(refused == 0)
            index = index[good]
            times = times[good]
            users = None if users is None else users[good]
        views: dict[str, EventColumns] = {}
        for column in range(len(labels)):
            views.update(self._columns(column, spans, keys, labels[column], good))
        return Events(
            index, times, users, {name: views[name] for name in layout.names}
        ), rejects

    def _keys(self, place: int, spans: EventSpans) -> Codes:
        names = self._names[place]
        places = spans.keys[place]
        names.begin()
        if places is None:
            return np.full(
                len(spans), names.vocabulary.code_of(ALL_STREAM_KEY), dtype=np.int32
            )
        return names.vocabulary.codes(spans.data, places)

    def _codes(self, place: int, spans: EventSpans) -> Codes:
        labels = spans.columns[place].labels
        if self._reader.layout.items_of[place].edges is not None:
            return labels[:, 0].astype(np.int32)
        return self._labels[place].vocabulary.codes(spans.data, labels)

    def _refused(
        self, spans: EventSpans, keys: list[Codes], latest_ms: int | None
    ) -> NDArray[np.int8]:
        """Return the index of the refusal reason for each event, 0 if accepted."""
        refused = np.zeros(len(spans), dtype=np.int8)
        if self._placement is not None and spans.users is not None:
            belongs = self._placement.belongs(spans.data, spans.users, spans.times)
            refused[spans.in_any_view & ~belongs] = 1
        if int(spans.times.min(initial=self._earliest_ms)) < self._earliest_ms:
            before = (spans.times < self._earliest_ms) & (refused == 0)
            refused[before] = np.where(spans.in_any_view[before], 4, _PASSED_OVER)
        if latest_ms is not None and int(spans.times.max(initial=0)) > latest_ms:
            late = (spans.times > latest_ms) & (refused == 0)
            refused[late] = np.where(spans.in_any_view[late], 2, _PASSED_OVER)
        for number, key in zip(spans.number, self._reader.layout.key_of, strict=True):
            declared = self._declared[key]
            if declared is not None:
                # Declared keys have the first codes.
                refused[
                    (number != UNSEEN) & (keys[key] >= declared) & (refused == 0)
                ] = 3
        return refused

    def _reason(self, why: int, time_ms: int) -> str:
        shape = self._reader.layout.shape
        reason = _REASONS[why]
        if reason == EARLY and shape.time is None and time_ms <= _NO_RECORD_TIME_MAX:
            return NO_RECORD_TIME
        return (
            with_unit(reason, time_ms, shape.unit)
            if reason in (EARLY, AHEAD)
            else reason
        )

    def _columns(
        self,
        column: int,
        spans: EventSpans,
        keys: Sequence[Codes],
        labels: Codes,
        good: Longs | None,
    ) -> Iterator[tuple[str, EventColumns]]:
        """Yield the columns of views that share a column of labels, deduplicated once for all."""
        layout = self._reader.layout
        given = spans.columns[column]
        views = [view for view, of in enumerate(layout.column_of) if of == column]
        firsts = [_kept(spans.first[view], good) for view in views]
        numbers = [_kept(spans.number[view], good) for view in views]
        first = firsts[0]
        number = numbers[0]
        for other_first, other in zip(firsts[1:], numbers[1:], strict=True):
            if int(number.min(initial=0)) > UNSEEN:
                break
            # All views that include an event share the location of its labels.
            first = np.where(number == UNSEEN, other_first, first)
            number = np.maximum(number, other)
        columns = None
        amounts = NO_AMOUNTS if given.once else given.amounts
        for view, own in zip(views, numbers, strict=True):
            key = layout.key_of[view]
            codes = _kept(keys[key], good)
            names = self._names[key].vocabulary
            if columns is None:
                encoder = self._encoders[column]
                repeated = ADDED_UP if layout.items_of[column].sum is None else FIRST
                columns = encoder.columns(
                    codes, names, first, number, labels, amounts, repeated=repeated
                )
            if own is number:
                yield layout.names[view], columns
            else:
                seen = own != UNSEEN
                yield (
                    layout.names[view],
                    replace(columns, keys=codes, key_names=names, seen=seen),
                )


def _kept(column: NDArray[A], good: Longs | None) -> NDArray[A]:
    return column if good is None else column[good]
