"""The mechanism id: a hash of every public parameter that changes a noise value (mechanisms.md 1).

Noise is derived from it, so two configurations, epochs, generations or streams never share noise.
The stream is identified by the broker's ids of the contributions and release-state topics: a topic
that was deleted and recreated holds other data, or no record of which data was published, and gets
other noise. So does a histogram with a different first tick.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

# Increment with any change to how values, thresholds or snapshots are computed: same id, same
# bytes.
VERSION = 1


def describe(
    *,
    worker: str,
    histogram: str,
    generation: int,
    tick_ms: int,
    start_ms: int,
    stream: str,
    topic: str,
    events: Mapping[str, object],
    mechanism: Mapping[str, object],
) -> dict[str, object]:
    """Return the parameters that identify a mechanism in all of its epochs, as JSON.

    Args:
        generation: raised on purpose for a new mechanism and a new charge.
        start_ms: start of tick 1 of epoch 1, ms since 1970.
        stream: names and broker ids of the topics between and behind the stages, or "replay".
        topic: output topic.
        events: the topic and event fields that are counted.
        mechanism: `Mechanism.public()`.
    """
    return {
        "version": VERSION,
        "worker": worker,
        "histogram": histogram,
        "generation": generation,
        "tick_ms": tick_ms,
        "start_ms": start_ms,
        "stream": stream,
        "topic": topic,
        "events": events,
        **mechanism,
    }


def mechanism_id(description: Mapping[str, object], first: int, epoch: int) -> bytes:
    """Return the 16-byte id of one epoch of a mechanism, published from global tick `first` on."""
    text = json.dumps(
        {**description, "first": first, "epoch": epoch},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    )
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"qc-mechanism-id").digest()
