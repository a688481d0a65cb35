"""What every continual mechanism looks like: configuration, state, and one pure step a tick.

A mechanism is public and frozen. Its state is sensitive and belongs to one (histogram, epoch, owner partition). `step` takes the
state as of the last tick, what was contributed to this one, and the noise, and gives the release: equal inputs, equal outputs, no
clock, no I/O. The state is updated in place and is the caller's no more: who wants to repeat a tick starts from the stored one.

The cost is data (`cost()`), the error that is published is computed from the configuration alone (`sd`, `threshold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.mechanisms.accounting import Cost
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.ledger import Contributions, Ledger, Rows, Tags
from workers.mechanisms.noise.keyed import NoiseStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What is promised for one epoch and stream of snapshots: (epsilon, delta) and the zCDP it came from, for one `unit`."""

    unit: str
    rho: float
    epsilon: float
    delta: float


def head(kind: str, config: HistogramConfig, guarantee: Guarantee) -> dict[str, object]:
    """What every mechanism's `public` begins with."""
    return {
        "mechanism": kind,
        "max_items": config.max_items,
        "max_count": config.max_count,
        "unit": guarantee.unit,
        "rho": repr(guarantee.rho),
        "delta": repr(guarantee.delta),
    }


@dataclass(frozen=True, slots=True)
class Release:
    """What one tick shows: rows of the columns with noisy counts. Safe for anyone once the rows are turned into labels.

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
    """What one tick shows, for a mechanism whose items have no rows (a sketch, a sum of noisy histograms).

    Attributes:
        keys: int32 (m,), the stream key's index of each item.
        labels: m labels, UTF-8.
        counts: int64 (m,), the noisy count of each.
        sd: standard deviation of every count in it.
        threshold: an item is shown only above it; None where there is none.
    """

    keys: NDArray[np.int32]
    labels: Sequence[bytes]
    counts: NDArray[np.int64]
    sd: float
    threshold: int | None


@dataclass(frozen=True, slots=True)
class Answers:
    """What one tick shows, for a mechanism that answers a query: fields of the snapshot that stand where the items would.

    Attributes:
        of_key: for each stream key's index, JSON-able fields, such as {"query": "max", "value": 12}.
        sd: standard deviation of the answers, None where it is not one number.
    """

    of_key: Mapping[int, Mapping[str, object]]
    sd: float | None


class State:
    """The columns of one histogram and epoch, and whatever else a mechanism remembers (sensitive).

    A mechanism with more state than its columns subclasses this and hands out its changed blocks as bytes, under names that begin
    with "m". `key_tags` holds one tag for each stream key, of a label that no item can have: what noise of a whole stream key is made
    from. It is kept up by the caller, also across a restart.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.key_tags: Tags = np.empty((0, 2), dtype=np.uint64)

    def add_domain(self, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Appends a row for every label of a stream key's declared domain, seen or not."""
        if labels:
            lengths = np.fromiter(map(len, labels), dtype=np.int64, count=len(labels))
            self.ledger.append(tags, np.full(len(labels), key, dtype=np.int32), lengths, b"".join(labels))

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Further blocks that changed since the last commit: (name, versioned bytes)."""
        return ()

    def restore(self, name: str, block: bytes) -> None:
        """Takes back a block that `changed` once gave."""
        raise StateRefused(
            f"stored state has a block {name!r} that this mechanism does not know: was it written by a newer version?"
        )


class Noise(Protocol):
    """Noise of all rows of an epoch at a tick, cached between ticks where that helps."""

    def at(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Integer noise of each row at tick t; `tags` only ever grows."""
        ...


class Mechanism(Protocol):
    """One configured continual mechanism. Everything here is public."""

    @property
    def kind(self) -> str:
        """Its name in the settings."""
        ...

    @property
    def law(self) -> str:
        """Law of the noise on its counts: "gaussian" or "laplace".

        "logistic" where it decides picks, "sum" where answers are made from noisy sums.
        """
        ...

    @property
    def guarantee(self) -> Guarantee:
        """What one epoch promises."""
        ...

    def cost(self) -> Cost:
        """zCDP and named failure probabilities of one epoch."""
        ...

    def public(self) -> Mapping[str, object]:
        """Every public parameter that changes a noise value or its meaning, as JSON: hashed into the mechanism id."""
        ...

    def sd(self, t: int) -> float:
        """Standard deviation of every count released at tick t."""
        ...

    def threshold(self, t: int) -> int | None:
        """Count above which a new item is shown at tick t."""
        ...

    def init(self) -> State:
        """The state before tick 1."""
        ...

    def noise(self, stream: NoiseStream) -> Noise:
        """The noise of one epoch."""
        ...

    def meet_key(self, state: State, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Called once an epoch for each stream key, before its first step, with the declared domain's tags (or none)."""
        ...

    def domain(self) -> Sequence[bytes]:
        """The declared labels; empty where the domain is unknown."""
        ...

    def step(
        self, state: State, t: int, contributions: Sequence[tuple[Contributions, NDArray[np.int32]]], noise: Noise
    ) -> tuple[State, Release | Items | Answers]:
        """One tick: adds what was contributed and releases.

        Args:
            state: as of tick t - 1; consumed.
            t: tick of the epoch, from 1.
            contributions: what each message adds, with the index here of each of its stream keys (-1: not served).
            noise: of this epoch.

        Returns:
            The new state and what tick t shows.

        Raises:
            HorizonExceeded: t lies outside 1..horizon.
        """
        ...
