"""The mechanism id: a hash of every public parameter that changes a noise value.

Noise is derived from it, so two configurations, epochs, generations, streams or first ticks never
share noise. The broker's ids of the contributions and release-state topics identify the stream: a
topic that was deleted and recreated holds other data, or no record of published data.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TypedDict, Unpack

# Incremented with any change to values, thresholds or snapshots: same id, same bytes.
VERSION = 1


class Identity(TypedDict):
    """The parts of a mechanism id beside the parameters of the mechanism itself."""

    worker: str
    histogram: str
    generation: int  # raised on purpose for a new mechanism and a new charge
    tick_ms: int
    start_ms: int  # start of tick 1 of epoch 1, ms since 1970
    stream: str  # names and broker ids of the topics between and behind the stages, or "replay"
    topic: str  # output topic
    events: Mapping[str, object]  # the topic and event fields that are counted


def describe(
    mechanism: Mapping[str, object], **identity: Unpack[Identity]
) -> dict[str, object]:
    """Return what every id of a mechanism hashes, as JSON: its `public()` and identity."""
    return {"version": VERSION, **identity, **mechanism}


def series_id(
    description: Mapping[str, object],
    first: int,
    epoch: int,
    window_ms: int | None = None,
) -> str:
    """Return the id by which readers find the snapshots of an epoch that belong together.

    It is the `mechanism_id` from which the epoch's noise is derived, but in two cases. Without
    epochs a histogram has a series for each window, which share noise: the id has the window too.
    Where stream keys are split into parts, these may begin at different ticks, as after a new
    generation, and must still have one id: it leaves out the first tick.
    """
    begin = None if "split" in description else first
    named = description if window_ms is None else {**description, "window": window_ms}
    return mechanism_id(named, begin, epoch).hex()


def mechanism_id(
    description: Mapping[str, object], first: int | None, epoch: int
) -> bytes:
    """Return the id of one epoch of a mechanism, published from global tick `first` on.

    `first` is None for a series whose parts may begin at different ticks (`series_id`).
    """
    named = {**description, "first": first, "epoch": epoch}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(
        text.encode(), digest_size=16, person=b"qc-mechanism-id"
    ).digest()
