"""What every continual mechanism looks like: configuration, state, and one pure step a tick.

A mechanism is public and frozen. Its state is sensitive and belongs to one (histogram, epoch, owner
partition). `step` takes the state as of the last tick, what was contributed to this one, and the
noise, and gives the release: equal inputs, equal outputs, no clock, no I/O. `step` consumes the
state; to repeat a tick, reload the stored one.

The cost is data (`cost()`); the published error follows from the configuration alone (`sd`,
`threshold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows, Tags
from workers.arrays.texts import Texts
from workers.mechanisms.accounting import Cost
from workers.mechanisms.config.buckets import short
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Ledger, Parts
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import Frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The promise for one `unit`, epoch and stream of snapshots, with the zCDP it came from."""

    unit: str
    rho: float
    epsilon: float
    delta: float


def head(kind: str, config: HistogramConfig, guarantee: Guarantee) -> dict[str, object]:
    """Return what every mechanism's `public` begins with."""
    buckets = config.buckets
    numeric = (
        {
            "buckets": list(map(short, buckets.edges)),
            "quantiles": list(map(repr, config.shown_quantiles)),
        }
        if buckets
        else {}
    )
    return {
        "mechanism": kind,
        "max_items": config.max_items,
        "max_count": config.max_count,
        "unit": guarantee.unit,
        "rho": repr(guarantee.rho),
        "delta": repr(guarantee.delta),
        **numeric,
    }


def ticks_of_item(config: HistogramConfig, unit: str) -> int:
    """Return in how many ticks at most one item counts of what is hidden.

    Of an event it is one. What a user adds to an item, at most Dinf, may come in as many parts:
    each is tested for being shown, and drawn with noise of its own, where ticks are released by
    themselves.
    """
    if unit == "event":
        return 1
    return min(config.max_count, config.horizon_ticks or config.max_count)


@dataclass(frozen=True, slots=True)
class Release:
    """What one tick shows: rows of the ledger with noisy counts. Public once they are labels.

    Attributes:
        rows: int64 (m,), the rows shown, ascending.
        counts: int64 (m,), the noisy count of each.
        sd: standard deviation of every count in it.
        threshold: an item not shown before is shown only above it; None where the domain is known.
    """

    rows: Rows
    counts: NDArray[np.int64]
    sd: float
    threshold: int | None


@dataclass(frozen=True, slots=True)
class Items:
    """What one tick shows, for a mechanism whose items have no rows, such as a sketch.

    Attributes:
        keys: int32 (m,), the stream key's index of each item.
        labels: m labels, UTF-8.
        counts, sd, threshold: as in `Release`.
    """

    keys: NDArray[np.int32]
    labels: Sequence[bytes]
    counts: NDArray[np.int64]
    sd: float
    threshold: int | None


@dataclass(frozen=True, slots=True)
class Answers:
    """What one tick shows, for a mechanism that answers a query.

    Attributes:
        of_key: for each stream key's index, JSON-able fields: {"query": "max", "value": 12}.
        sd: standard deviation of the answers, None where it is not one number.
    """

    of_key: Mapping[int, Mapping[str, object]]
    sd: float | None


class State:
    """The ledger of one histogram and epoch, and whatever else a mechanism remembers (sensitive).

    A mechanism with more state than its ledger subclasses this and hands out its changed blocks as
    bytes, under names that begin with "m". `key_tags` holds one tag for each stream key, of a label
    that no item can have: noise of a whole stream key is made from it. The caller keeps it up, also
    across a restart.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.key_tags: Tags = np.empty((0, 2), dtype=np.uint64)

    def add_domain(self, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Append a row for every label of a stream key's declared domain, seen or not."""
        if labels:
            self.ledger.append(tags, np.full(len(labels), key, dtype=np.int32), Texts.of(labels))

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the further blocks that changed since the last commit: (name, versioned bytes)."""
        return ()

    def restore(self, name: str, block: bytes) -> None:
        """Take back a block that `changed` once gave."""
        raise StateRefused(
            f"stored state has a block {name!r} that this mechanism does not know: was it written by a newer version?"
        )


class Noise(Protocol):
    """Noise of all rows of an epoch at a tick, cached between ticks where that helps."""

    def at(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Return the integer noise of each row at tick t; `tags` only ever grows."""


class Mechanism(Protocol):
    """One configured continual mechanism. Everything here is public."""

    @property
    def kind(self) -> str:
        """Return its name in the settings."""

    @property
    def law(self) -> str:
        """Law of the noise on its counts: "gaussian" or "laplace".

        "logistic" where it decides picks, "sum" where answers are made from noisy sums.
        """
        ...

    @property
    def guarantee(self) -> Guarantee:
        """Return what one epoch promises."""

    def cost(self) -> Cost:
        """Return the zCDP and the named failure probabilities of one epoch."""

    def public(self) -> Mapping[str, object]:
        """Return every parameter that changes a noise value or its meaning: its id."""

    def sd(self, t: int) -> float:
        """Return the standard deviation of every count released at tick t."""

    def threshold(self, t: int) -> int | None:
        """Return the count above which a new item is shown at tick t."""

    def init(self) -> State:
        """Return the state before tick 1."""

    def noise(self, stream: NoiseStream) -> Noise:
        """Return the noise of one epoch."""

    def meet_key(self, state: State, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Prepare for a stream key, once an epoch, with the declared domain's tags (or none)."""

    def domain(self) -> Sequence[bytes]:
        """Return the declared labels; none where the domain is unknown."""

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release | Items | Answers]:
        """Add what was contributed to one tick, and release.

        Args:
            state: as of tick t - 1; consumed.
            t: tick of the epoch, from 1.
            contributions: what each message adds, with its keys' index here (-1: not served).
            noise: of this epoch.

        Returns:
            The new state and what tick t shows.

        Raises:
            HorizonExceeded: t lies outside 1..horizon.
        """


@runtime_checkable
class Differences(Protocol):
    """A mechanism whose running counts can be subtracted across ticks: what their noise leaves."""

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of an item's count at tick t less its count at `since`, both published.

        Args:
            t: tick of the epoch, from 1.
            since: an earlier one; 0 is the epoch's start, where every count is 0, without noise.

        Raises:
            HorizonExceeded: one of them is outside the horizon.
        """


class Domained(Frozen):
    """Base of the mechanisms with a row for every label of a domain; an empty one is unknown."""

    _domain: tuple[bytes, ...] = ()

    def domain(self) -> Sequence[bytes]:
        return self._domain

    def meet_key(self, state: State, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Give every item of the domain its row, seen or not."""
        state.add_domain(key, tags, labels)

    def threshold(self, t: int) -> int | None:
        """Return None: which items are shown does not depend on their counts."""
        return None
