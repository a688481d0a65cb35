"""Pending rejects of one partition, on their way to the rejects topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from workers.events.reader import Reject
from workers.kafka.records import Outgoing, Records
from workers.pipeline.rejected import REJECT_HEADERS_BYTES_MAX, rejected
from workers.pipeline.sources import Place
from workers.runtime.logs import about
from workers.runtime.metrics import Metrics

logger = logging.getLogger(__name__)

# Rejects that reach either limit are committed after that part of a batch. They exceed it by at
# most the bytes of a part (`kafka/decoding.py`), and 1,000 for each of its 60,000 records.
REJECTS_MAX = 10_000
REJECTS_BYTES_MAX = 32 << 20
# Python's overhead for a header, whose own bytes are at least 3: measured 120 to 170. Every
# reject has five headers.
HEADER_BYTES = 200
# Above this, rejects omit the records' own headers, as if they were too long.
_HEADERS_BYTES_MAX = 128 << 20


class Rejects:
    def __init__(self, topic: str, place: Place, metrics: Metrics) -> None:
        self._topic, self._place, self._metrics = topic, place, metrics
        self.messages: list[Outgoing] = []
        self.nbytes = 0
        self._reasons: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        return len(self.messages) >= REJECTS_MAX or self.nbytes >= REJECTS_BYTES_MAX

    def add(self, records: Records, rejects: Sequence[Reject]) -> None:
        for reject in rejects:
            i = reject.index
            most = REJECT_HEADERS_BYTES_MAX if self.nbytes < _HEADERS_BYTES_MAX else 0
            message = rejected(
                self._topic,
                records.key(i),
                records.value(i),
                reason=reject.reason,
                source=(*self._place.log, int(records.offsets[i])),
                time_ms=int(records.times[i]),
                further=records.headers(i, most),
            )
            self.messages.append(message)
            self.nbytes += message.nbytes + HEADER_BYTES * len(message.headers)
            self._reasons[reject.reason] += 1

    def committed(self) -> None:
        if not self.messages:
            return
        reasons = sorted(self._reasons)
        topic, partition = self._place.log
        logger.warning(
            "%s: records rejected: %s; see topic %s",
            self._place,
            ", ".join(reasons),
            self._topic,
            extra=about(event="rejected", topic=topic, partition=partition, reasons=reasons),
        )
        for reason, n in self._reasons.items():
            self._metrics.rejects.labels(reason).inc(n)
        self.messages, self.nbytes, self._reasons = [], 0, Counter()
