"""The events of one source partition, from records to columns of codes; what is no event, with the
reason.
"""

from __future__ import annotations

import numpy as np

from workers.events.columns import NO_AMOUNTS, Coder, EventColumns
from workers.events.pairs import user_digests
from workers.events.reader import EventReader, Reject
from workers.kafka.placement import Placement
from workers.kafka.records import Records
from workers.settings import ALL_STREAM_KEY

MISPLACED = "user's records belong in another partition"
AHEAD = "dated too far ahead"
NOT_DECLARED = "key not declared"


class SourceReader:
    """Reads batches of one source partition, in order. Not for two threads."""

    def __init__(
        self, reader: EventReader, declared: frozenset[str] | None, placement: Placement | None = None
    ) -> None:
        """
        Args:
            reader: decodes events; shared.
            declared: the stream keys that any histogram serves; None where every key may be named
                in public.
            placement: whether a user's records belong in this source partition; None: they all do.
        """
        self._reader, self._placement = reader, placement
        self._declared = None if declared is None else len(declared)
        self._coder = Coder(declared or ())
        #: Events of the last batch that only the general reader could read.
        self.declined = 0

    def read(self, records: Records, latest_ms: int | None = None) -> tuple[EventColumns, list[Reject]]:
        """Decode a batch.

        Args:
            records: the batch.
            latest_ms: events dated later are rejected: they must not close ticks early. None: no
                limit.

        Returns:
            The valid events, and a reject for each other record, by index.
        """
        spans, rejects = self._reader.read(records)
        self.declined = spans.declined
        self._coder.begin()
        if spans.keys is None:
            keys = np.full(len(spans), self._coder.keys.code_of(ALL_STREAM_KEY), dtype=np.int32)
        else:
            keys = self._coder.keys.codes(spans.data, spans.keys)
        refused = np.zeros(len(spans), dtype=np.int8)
        reasons = ("", MISPLACED, AHEAD, NOT_DECLARED)
        if self._placement is not None and spans.users is not None:
            refused[~self._placement.here(spans.data, spans.users)] = 1
        if latest_ms is not None:
            refused[(spans.times > latest_ms) & (refused == 0)] = 2
        if self._declared is not None:
            # Declared keys have the first codes.
            refused[(keys >= self._declared) & (refused == 0)] = 3
        users = None if spans.users is None else user_digests(spans.data, spans.users)
        labels = self._coder.labels.codes(spans.data, spans.labels)
        amounts = NO_AMOUNTS if spans.amounts is None else spans.amounts
        times, first, number = spans.times, spans.first, spans.number
        if refused.any():
            bad = np.flatnonzero(refused)
            for index, why in zip(spans.index[bad].tolist(), refused[bad].tolist(), strict=True):
                reason = reasons[why]
                rejects.append(Reject(index, reason))
            rejects.sort(key=lambda reject: reject.index)
            good = np.flatnonzero(refused == 0)
            times, keys, first, number = times[good], keys[good], first[good], number[good]
            users = None if users is None else users[good]
        return self._coder.columns(times, keys, first, number, labels, amounts, users), rejects
