"""Hostile JSON, and events made and mutated at random, of which the scanner and the general reader must say
the same: `python -m tests.kernels.json_corpus [--records N] [--seed S]`."""

from __future__ import annotations

from workers.agents.events import EventSpans

Row = tuple[int, int, bytes | None, bytes | None, list[bytes], list[int]]


def read_back(spans: EventSpans) -> list[Row]:
    """Return each event as (record, time, stream key, user, labels, amounts)."""
    data = spans.data.tobytes()
    labels = [data[start:stop] for start, stop in spans.labels.tolist()]
    amounts = [1] * len(labels) if spans.amounts is None else spans.amounts.tolist()
    n = len(spans)
    keys, users = (
        [None] * n if column is None else [data[start:stop] for start, stop in column.tolist()]
        for column in (spans.keys, spans.users)
    )
    places = [slice(at, at + more) for at, more in zip(spans.first.tolist(), spans.number.tolist(), strict=True)]
    return [
        (index, time, key, user, labels[place], amounts[place])
        for index, time, key, user, place in zip(
            spans.index.tolist(), spans.times.tolist(), keys, users, places, strict=True
        )
    ]
