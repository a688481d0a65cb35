"""The newest progress record of a state topic's partitions, as stored; needs no compiled code."""

from collections.abc import Iterable

from confluent_kafka import Consumer

from workers.kafka.reading import Partition, bounds_of, read_spans
from workers.pipeline.ledger_blocks import read_paged
from workers.runtime.errors import StateRefused

#: Key of the progress record in the state topics of all stages.
PROGRESS = b"progress"
# The progress record ends every transaction: read few records first, then more from further back.
NEWEST = 16
_FURTHER_BACK = 16


def newest_values(
    consumer: Consumer, wanted: Iterable[Partition]
) -> dict[Partition, bytes]:
    """Return the newest progress record of each partition of a state topic that has one."""
    found: dict[Partition, bytes] = {}
    bounds = {where: bounds_of(consumer, *where) for where in wanted}
    bounds = {where: (low, high) for where, (low, high) in bounds.items() if low < high}
    newest = NEWEST
    while bounds:
        spans = {
            where: (max(low, high - newest), high)
            for where, (low, high) in bounds.items()
        }
        values: dict[Partition, dict[bytes, bytes | None]] = {
            where: {} for where in spans
        }
        whole: dict[Partition, bytes] = {}
        cut: dict[Partition, StateRefused] = {}
        for taken in read_spans(consumer, dict(spans)):
            where = taken.where
            pairs = values[taken.where]
            for message in taken.messages:
                key = message.key() or b""
                if key == PROGRESS or key.startswith(PROGRESS + b"."):
                    pairs[key] = message.value()
                # Pages precede their record; pages of an unfinished record do not count.
                if key == PROGRESS:
                    try:
                        if (value := read_paged(PROGRESS, pairs.get)) is not None:
                            whole[where] = value
                    except (
                        StateRefused
                    ) as error:  # some of its pages may be further back
                        cut[where] = error
        found |= whole
        for where, refusal in cut.items():
            if where not in whole and spans[where][0] == bounds[where][0]:
                raise refusal
        for where, (first, _) in spans.items():
            if where in whole or first == bounds[where][0]:
                del bounds[where]
        newest *= _FURTHER_BACK
    return found
