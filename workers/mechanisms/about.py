"""What a mechanism says of itself: `plan`, `check`, `backtest`, page and documents read it here.

`About` is public and holds for every configuration of a mechanism; a configuration declares it as
its class attribute `about`. `Bound`, `Figure`, `RowBytes` and `SketchBytes` are what a built
mechanism (`mechanism.Mechanism`) says of its errors and of its memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

Family = Literal["running", "tick", "labels", "statistic"]
Rule = Literal["once", "each", "block", "bar"]

# What a threshold decides.
SHOWN = MappingProxyType(
    {
        "once": "an item is shown once its noisy count is above, and then stays shown",
        "each": "an item is shown at each tick at which its noisy count is above",
        "block": "one block of ticks shows an item whose noisy count in it is above",
        "bar": "a noisy bar lies this far above the (kbar + 1)-th largest count; items above it are shown",
    }
)
# Mechanisms of other families that answer a similar question.
_BESIDE: MappingProxyType[Family, tuple[str, ...]] = MappingProxyType(
    {
        "running": (),
        "tick": ("unk_base", "known_base"),
        "labels": ("unk_base", "sparse_gumb", "misra_gries", "limit_dom"),
        "statistic": ("known_base",),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a mechanism counts, shows and takes.

    order       its place among all mechanisms in comparisons and tables
    family      "running": counts since the epoch began; "tick": each tick's own counts; "labels":
                labels with the largest counts, at chosen ticks; "statistic": order statistics of
                running counts
    answers     what its snapshots show, in a plan
    on          which figures have the noise that a plan states
    page        which items it shows, or what it answers, in a sentence on the dashboard
    rule        what its threshold decides (`SHOWN`); None without a threshold
    counters    "every" kind to choose from; "steady": those that keep equally much at every tick;
                "tree": blocks of ticks of its own; "" if it keeps none
    ends        accepts the setting `end_share`
    sums        accepts the setting `sum`: each item has a counter, and may have one more
    totals      accepts the setting `total_share`
    subtracts   its running counts differ from the truth by noise only, so changes are counts too
    subtracts_with   the setting with which it both subtracts and has quantiles, else neither
    whole_domain    shows every declared label at every tick
    has_quantiles   shows every declared label at every tick (`whole_domain`), with Gaussian noise,
                so that quantiles can be computed
    ranks       accepts for = "quantiles": the noise of buckets is that of ranks
    per_item    its cost is a sum over the items touched, so items may be split over partitions
    gaussian    its cost is that of Gaussian noise alone, and converted exactly
    bounded         refuses an epoch without an end
    never           accepts horizon = "never": windows without epochs
    needs_epsilon   refuses `rho`: its accounting is pure
    may_be_pure its epsilon may be a pure one
    in_ledger   its exact counts are those of the ledger's rows alone
    gaussian_like   the mechanism that answers the same with Gaussian noise on all counts
    plain       a counter for every item and nothing else: what advice compares others with
    pays        when it is better than plain counters, after its name in a plan's advice
    """

    order: int
    family: Family
    answers: str
    on: str = "each running count"
    page: str = ""
    rule: Rule | None = None
    counters: Literal["", "every", "steady", "tree"] = ""
    ends: bool = False
    sums: bool = False
    totals: bool = False
    subtracts: bool = False
    subtracts_with: str = ""
    whole_domain: bool = False
    has_quantiles: bool = False
    ranks: bool = False
    per_item: bool = False
    gaussian: bool = False
    bounded: bool = False
    never: bool = False
    needs_epsilon: bool = False
    may_be_pure: bool = False
    in_ledger: bool = False
    gaussian_like: str = ""
    plain: bool = False
    pays: str = ""

    @property
    def shown(self) -> str:
        return SHOWN[self.rule or "once"]

    @property
    def beside(self) -> tuple[str, ...]:
        return _BESIDE[self.family]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Assumptions about the data. Privacy does not depend on them.

    `items`: occurring labels of an unknown domain. `value`: largest watched value (unbounded order
    statistics). `weight`: sum of an epoch's counts (sketches). `ticks`: for unbounded horizons.
    """

    items: int = 1_000
    value: int = 1_000
    weight: int = 100_000
    ticks: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("items", "value", "weight", "ticks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")


class Bound(msgspec.Struct, frozen=True):
    """Error bound with probability 1 - beta over an epoch of one stream key, as proved here.

    "counts" bounds the noise on published counts, "hidden" the true count of an unpublished item,
    "selection" how wrong a choice may be, "answer" the error of an order statistic, all of them the
    worst over labels and ticks.
    """

    name: str
    bounds: str
    assumes: str
    beta: float
    ours: float
    source: str


class Figure(msgspec.Struct, frozen=True):
    """A number that `plan` prints beside the noise, such as the share that a sketch loses."""

    name: str
    value: float
    meaning: str


class RowBytes(NamedTuple):
    """Bytes beyond a mechanism's columns: `noise` and `state` per row, and `per_key`."""

    noise: int = 0
    state: int = 0
    per_key: int = 0
    note: str = ""


class SketchBytes(NamedTuple):
    """Bytes of a mechanism without rows: of a counter, of a shown item, and of a stream key."""

    counter: int
    shown: int
    counter_on_disk: int
    counters: int  # at most, of a stream key
    key_least: int
    key_most: int
    key_on_disk: int
    note: str


# Of a pick: the larger of two wins 19 out of 20 times.
_ODDS = 19


def pick_figures(scale: float) -> Iterator[Figure]:
    """Yield the figures of picks by the exponential mechanism, equal to Gumbel noise."""
    meaning = "scale of the Gumbel noise that a pick is equal to"
    yield Figure("pick_scale", scale, meaning)
    gap = scale * math.log(_ODDS)
    meaning = "of two items so far apart the larger is picked in 95 %"
    yield Figure("pick_gap_95", gap, meaning)
