"""The mechanism id: a hash of every public parameter that changes a noise value or its meaning (mechanisms.md 1).

Noise is made from it, so two configurations, epochs, generations or streams never share noise. The stream is named by the id that
the broker gave the contributions topic: a topic that was deleted and made anew holds other data, and gets other noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

VERSION = 1


def describe(
    *,
    worker: str,
    histogram: str,
    generation: int,
    tick_ms: int,
    start_ms: int,
    stream: str,
    mechanism: Mapping[str, object],
) -> dict[str, object]:
    """The parameters that identify a mechanism in all of its epochs, as JSON.

    Args:
        worker: the worker's name.
        histogram: the histogram's name.
        generation: raised on purpose for a new mechanism and a new charge.
        tick_ms: tick width.
        start_ms: start of tick 1 of epoch 1, ms since 1970.
        stream: name and broker's id of the contributions topic, or "replay".
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
        **mechanism,
    }


def mechanism_id(description: Mapping[str, object], epoch: int) -> bytes:
    """16 bytes that name one epoch of a mechanism; published as 32 hex digits."""
    text = json.dumps({**description, "epoch": epoch}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"qc-mechanism-id").digest()
