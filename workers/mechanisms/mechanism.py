"""The interface of every continual mechanism: configuration, state, and one pure step per tick.

A mechanism is public and frozen. Its state is sensitive and belongs to one (histogram, epoch, owner
partition); an owner partition has a share of the stream keys. `step` maps the previous state, one
tick's contributions and the noise to a release: equal inputs, equal outputs, no clock, no I/O. It
consumes the state; to repeat a tick, reload the stored one. Cost and published error follow from
the configuration alone.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from msgspec import UNSET

from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs, Tags
from workers.mechanisms.about import About, Bound, Data, Figure, RowBytes, SketchBytes
from workers.mechanisms.accounting import Guarantee, PrivacyCost
from workers.mechanisms.config.buckets import short
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.curves import Curve, DigitCurve, TableCurve
from workers.mechanisms.ledger import Ledger, Parts
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.errors import HorizonExceeded, StateRefused
from workers.runtime.frozen import Frozen


@dataclass(frozen=True, slots=True)
class Noisy:
    """Integers with noise of one standard deviation."""

    values: Longs
    sd: float


@dataclass(frozen=True, slots=True)
class Release:
    """Noisy counts of m rows at one tick, of sd `sd`; public once labels replace the rows."""

    rows: Rows  # ascending
    counts: Longs
    sd: float
    threshold: int | None  # None for a known domain
    # For each row: 2 S - R n, with S its sum in steps, n its count and R the range of the setting
    # `sum` in steps. That is twice the sum measured from the middle of the range, so an event adds
    # -R..R.
    sums: Noisy | None = None
    # Of each stream key: the sum of all counts, shown or not.
    totals: Noisy | None = None

    @property
    def sds(self) -> tuple[float, float]:
        """The sd of counts, and of `sums`: 0 without them."""
        return self.sd, 0.0 if self.sums is None else self.sums.sd


@dataclass(frozen=True, slots=True)
class WindowReleases:
    """One tick's releases of a histogram without epochs: one for each of its `windows`, in order.

    All show the same rows of the ledger.
    """

    releases: tuple[Release, ...]
    # By window, the last tick before it; below 0 where it begins before tick 1.
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """The items published at one tick by a mechanism that has no rows in the ledger.

    `sd` is that of each count. `threshold` is the one that `About.threshold_rule` describes, None
    where picks decide what is shown.
    """

    keys: Codes  # index of each item's stream key
    labels: Sequence[bytes]
    counts: Longs
    sd: float
    threshold: int | None


@dataclass(frozen=True, slots=True)
class Answers:
    """The query answers published at one tick."""

    # By index of the stream key, as JSON: {"query": "max", "value": 12}
    of_key: Mapping[int, Mapping[str, object]]
    sd: float | None  # None where it is not one number
    # Callers read it from every release; answers have none.
    threshold: ClassVar[None] = None


class State:
    """The ledger of one histogram and epoch, plus any further mechanism state (sensitive)."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        # A tag for each stream key, for noise that its items share; the caller sets it.
        self.key_tags: Tags = np.empty((0, 2), dtype=np.uint64)

    def counts(self, i: int) -> Longs:
        """Return the exact count of every row in a tick's release i, of a mechanism with rows.

        A tick has one release (i = 0), or without epochs one for each window.
        """
        return self.ledger.counts

    def sums(self, i: int) -> Longs:
        """Return the exact sum of every row in release i, in steps of the setting `sum`."""
        return self.ledger.sums

    def merge(self, contributions: Parts, *, add_rows: bool) -> None:
        """Add one tick's messages to the ledger: first counts, then sums, which need their rows."""
        for part, key_index in contributions:
            if not part.of_sums:
                self.ledger.merge(part, key_index, add_rows=add_rows)
        for part, _ in contributions:
            if part.of_sums:
                self.ledger.add_sums(part)

    def changed(self) -> Sequence[tuple[str, bytes | None]]:
        """Return what to store beside the ledger: blocks that changed since the last call.

        A block is ("m...", version byte and bytes), or ("m...", None) to delete a stored one. A
        name has no dot, which names of pages have: a block too long for a message is stored in
        pages.
        """
        return ()

    def restore(self, name: str, block: bytes) -> None:
        """Take back a block that `changed` returned; raise `unknown_block` for any other name."""
        raise unknown_block(name)

    def restored(self) -> None:
        """Check and complete a state of which all blocks are restored, ledger and key tags too."""


class Noise(Protocol):
    """Noise of all rows of an epoch."""

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the integer noise of every row at tick t, (n,), from the rows' tags, (n, 2).

        Rows are only ever appended between ticks, so what was computed for a row may be kept.
        """


@runtime_checkable
class Differences(Protocol):
    """A mechanism whose running counts can be subtracted across ticks."""

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of a count's change from `since` < t; 0: epoch start, exact zero counts."""


class Mechanism(Frozen):
    """Base class of mechanisms; a constructor sets `_cost`, and `_threshold` if it is constant.

    `configs` are the configurations that it is made from. `bounds` and what follows it describe the
    mechanism for plans and reports; nothing there changes a release, so floats suffice.
    """

    configs: ClassVar[tuple[type[HistogramConfig], ...]] = ()
    kind: str
    # The law of the noise: "gaussian" or "laplace"; "logistic" if it selects top-k items; "sum" if
    # answers come from noisy sums.
    law = "gaussian"
    config: HistogramConfig
    _cost: PrivacyCost
    _threshold: int | None = None

    def __init__(self, config: HistogramConfig, unit: str) -> None:
        self.kind = config.mechanism
        self.config = config
        # What the guarantee protects: "event" or "user".
        self._unit = unit
        self._domain = tuple(label.encode() for label in config.declared)

    @classmethod
    def make(cls, config: HistogramConfig, unit: str) -> "Mechanism":
        """Build the mechanism of a configuration, of this class or a subclass."""
        return cls(config, unit)

    @property
    def about(self) -> About:
        return self.config.about

    @property
    def guarantee(self) -> Guarantee:
        """The privacy that the cost amounts to, for one event or user and epoch (or period)."""
        cost = self._cost
        # None except for users without epochs.
        ticks = self.config.user_period
        return Guarantee(
            unit=self._unit,
            rho=cost.rho,
            epsilon=cost.epsilon,
            delta=cost.delta,
            period=UNSET if ticks is None else ticks * self.config.tick_ms,
            overlap=UNSET if ticks is None else cost.overlap,
        )

    def cost(self) -> PrivacyCost:
        return self._cost

    def public(self) -> Mapping[str, object]:
        """Return every parameter that changes a noise value or its meaning: the id's input."""
        config = self.config
        promise = self.guarantee
        numeric = {}
        if config.buckets:
            numeric["buckets"] = list(map(short, config.buckets.edges))
            numeric["quantiles"] = list(map(repr, config.shown_quantiles))
        return {
            "mechanism": self.kind,
            "max_items": config.max_items,
            "max_count": config.max_count,
            "unit": promise.unit,
            "rho": repr(promise.rho),
            "delta": repr(promise.delta),
            # Only where they are set, so that ids without them, and their noise, stay the same.
            **numeric,
            **({"split": config.split} if config.split > 1 else {}),
            **({"bounds_rho": repr(config.bounds_rho)} if config.bounds_rho else {}),
            **({"accounting": "gaussian"} if self._cost.gaussian else {}),
            **self._parameters(),
        }

    def _parameters(self) -> Mapping[str, object]:
        """Return the parameters that this kind of mechanism adds to `public`."""
        raise NotImplementedError

    def sd(self, t: int) -> float:
        """Return the standard deviation of every count released at tick t."""
        raise NotImplementedError

    def threshold(self, t: int) -> int | None:
        """Return the count above which a new item is shown at tick t, if any."""
        self._check(t)
        return self._threshold

    def domain(self) -> Sequence[bytes]:
        """Return the declared labels; empty where the domain is unknown."""
        return self._domain

    def init(self) -> State:
        return State()

    def carry(
        self, last: State, t: int, noise: Noise, state: State, keys: Codes
    ) -> Rows:
        """Begin an epoch's empty `state` with items that the epoch before showed at its end.

        `last` is the state after the last tick, t, of the epoch before, and `noise` that epoch's
        noise, of which nothing was drawn yet. `keys` has, for each stream key of `last`, its index
        in `state`, or -1 where it has none. Return the rows of `state` that are shown from its
        first tick on: none, unless a mechanism overrides this.

        Guarantee: the result is a function of published counts, and so costs nothing
        (docs/decisions/0036-windows-without-epochs.md).
        """
        return np.empty(0, dtype=np.int64)

    def noise(self, stream: NoiseStream) -> Noise:
        """Return the noise of one epoch, drawn from the stream of its mechanism id."""
        raise NotImplementedError

    def prepare_key(
        self, state: State, key: int, tags: Tags, labels: Sequence[bytes]
    ) -> None:
        """Prepare for a stream key, once per epoch, with the declared domain's tags (or none)."""
        if labels:
            keys = np.full(len(labels), key, dtype=np.int32)
            state.ledger.append(tags, keys, Texts.of(labels))

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release | WindowReleases | Items | Answers]:
        """Release tick t (from 1) of the epoch; consumes the state. Raises `HorizonExceeded`."""
        raise NotImplementedError

    def ticks_of_item(self) -> int:
        """Return the most ticks in which one protected unit may contribute to an item.

        An event contributes in one tick, a user in up to `max_count`. Where ticks are released
        separately, the unit pays for a test for discovery, and for noise, in each.
        """
        if self._unit == "event":
            return 1
        return min(
            self.config.max_count, self.config.horizon_ticks or self.config.max_count
        )

    @property
    def delta_discovery(self) -> float:
        """The part of delta that pays for showing that items exist."""
        return dict(self._cost.failures).get("discovery", 0.0)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Return the accuracy bounds that are proved, the main one first."""
        raise NotImplementedError

    def curve(self, last: int) -> Curve:
        """Return the variance of published figures by tick, up to `last`."""
        blocks = self.blocks()
        return TableCurve(np.array([self.sd(1) ** 2])) if blocks is None else blocks

    def sum_curve(self) -> Curve | None:
        """Return the variance of `Release.sums`, if it has any."""
        return None

    def total_curve(self) -> Curve | None:
        """Return the variance of `Release.totals`, if it has any."""
        return None

    def other_counter(self, kind: str, radix: int | None) -> tuple[Curve, int] | None:
        """Return curve and bytes a row with another counter at the same cost; None without one."""
        return None

    def blocks(self) -> DigitCurve | None:
        """Return the curve if counts are sums of blocks of ticks, each with its own threshold."""
        return None

    def most_shown(self) -> int | None:
        """Return the most items that a tick shows; None: any number."""
        return len(self._domain) or None

    def first_error(self) -> float | None:
        """Return the bound on an answer's error while values are small; None without queries."""
        return None

    def segments_up_to(self, most: int) -> Iterator[tuple[int, int, float]]:
        """Yield up to `most` ranges of values: (number, largest value, error of answers)."""
        return iter(())

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield further figures; `last` is the last tick looked at, `worst` the noisiest."""
        return iter(())

    def hints(self) -> Iterator[str]:
        """Yield sentences about these settings, as advice."""
        return iter(())

    def row_bytes(self) -> RowBytes:
        """Return the memory of an item beside the ledger."""
        return RowBytes()

    def sketch_bytes(self, label: int) -> SketchBytes | None:
        """Return the memory of a mechanism without rows, for labels of `label` bytes."""
        return None

    def _ticks(self, data: Data) -> int:
        """Return the ticks of an epoch, assumed ones if it has no end."""
        return self.config.horizon_ticks or data.ticks

    def _check(self, t: int) -> None:
        horizon = self.config.horizon_ticks
        if t < 1 or (horizon is not None and t > horizon):
            raise HorizonExceeded(f"{self.kind}: tick {t} is outside 1..{horizon}")


def unknown_block(name: str) -> StateRefused:
    """Return the error for a stored block whose name is none of the mechanism's."""
    return StateRefused(
        f"stored state has a block {name!r} that this mechanism does not know: was it written by a newer version?"
    )


def body_of(name: str, block: bytes, version: int) -> bytes:
    """Return a stored block without its version byte; `StateRefused` if that is another."""
    if block[:1] != bytes((version,)):
        raise StateRefused(
            f"stored state: block {name!r} is damaged or of another version"
        )
    return block[1:]


T = TypeVar("T")


def expect_type(kind: type[T], value: object) -> T:
    """Return a mechanism's own state or noise; raise `TypeError` if it is another mechanism's."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}: must be this mechanism's own {kind.__name__}")
    return value


def short_hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
