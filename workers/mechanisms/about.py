"""What a mechanism says of itself, for settings, plans, the dashboard and documents.

`About` is public and holds for every configuration of a mechanism; a configuration declares it as
its class attribute `about`. Its texts are for people who read a plan, a report or the dashboard.
Its flags say which settings the mechanism takes (`config.histogram` checks that), and what readers
may do with its counts. `Bound`, `Figure`, `RowBytes` and `SketchBytes` are what a
built mechanism (`mechanism.Mechanism`) says of its errors and of its memory, for plans.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

Family = Literal["running", "tick", "labels", "statistic"]
Rule = Literal["once", "each", "block", "bar"]

# What a threshold decides, by rule. kbar is a setting: how many largest items are looked at.
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
    """What a mechanism counts and shows, and which settings it takes.

    order_in_tables   its place among all mechanisms in comparisons and tables
    family            "running": counts since the epoch began; "tick": each tick's own counts;
                      "labels": labels with the largest counts, at chosen ticks; "statistic": order
                      statistics of running counts
    text_in_plan      what its snapshots show, in a plan and in tables
    noise_is_on       the figures that have the noise which a plan states
    text_on_dashboard   which items it shows, or what it answers: a sentence
    threshold_rule    what its threshold decides: "once", "each", "block" or "bar" (`SHOWN` has the
                      words); None without a threshold
    counters          which kinds of counter it can keep. "every"; "steady": those that keep equally
                      much at every tick; "tree": blocks of ticks of its own; "": none
    takes_end_share, takes_total_share   takes the setting of this name
    takes_sum         takes `sum`: each item has a counter, and may have one more
    takes_for_quantiles   takes for = "quantiles": the noise of buckets is that of ranks
    takes_horizon_never   takes horizon = "never": windows without epochs
    needs_end         refuses an epoch without an end
    needs_epsilon     refuses `rho`: its accounting is pure
    may_be_pure       its epsilon may be a pure one
    subtracts         its running counts differ from the truth by noise only, so changes are counts
                      too
    subtracts_with    the setting with which it both subtracts and has quantiles, else neither
    whole_domain      shows every declared label at every tick
    has_quantiles     shows every declared label at every tick (`whole_domain`), with Gaussian
                      noise, so that quantiles can be computed
    per_item          its cost is a sum over the items touched, so items may be split over
                      partitions
    gaussian          its cost is that of Gaussian noise alone, and converted exactly
    in_ledger         its exact counts are those of the ledger's rows alone
    gaussian_like     the mechanism that answers the same with Gaussian noise on all counts
    plain             a counter for every item and nothing else: what advice compares others with
    pays              when it is better than plain counters, after its name in a plan's advice

    An empty text means that there is none.
    """

    order_in_tables: int
    family: Family
    text_in_plan: str
    noise_is_on: str = "each running count"
    text_on_dashboard: str = ""
    threshold_rule: Rule | None = None
    counters: Literal["", "every", "steady", "tree"] = ""
    takes_end_share: bool = False
    takes_total_share: bool = False
    takes_sum: bool = False
    takes_for_quantiles: bool = False
    takes_horizon_never: bool = False
    needs_end: bool = False
    needs_epsilon: bool = False
    may_be_pure: bool = False
    subtracts: bool = False
    subtracts_with: str = ""
    whole_domain: bool = False
    has_quantiles: bool = False
    per_item: bool = False
    gaussian: bool = False
    in_ledger: bool = False
    gaussian_like: str = ""
    plain: bool = False
    pays: str = ""

    @property
    def shown(self) -> str:
        """What its threshold decides, in words."""
        return SHOWN[self.threshold_rule or "once"]

    @property
    def beside(self) -> tuple[str, ...]:
        """Mechanisms of other families that a plan compares it with."""
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
    """Error bound that holds with probability 1 - beta over an epoch of one stream key.

    `ours` is the bound, which is proved in this project from the `source`; `bounds` says in words
    what it bounds, and `assumes` what it assumes of the data ("": nothing). By `name`, "counts"
    bounds the noise on published counts, "hidden" the true count of an unpublished item,
    "selection" how wrong a choice may be, and "answer" the error of an order statistic, each at its
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
    """Bytes beside the ledger's columns: of noise and state per row, and per stream key.

    `note` is a remark for a plan.
    """

    noise: int = 0
    state: int = 0
    per_key: int = 0
    note: str = ""


class SketchBytes(NamedTuple):
    """Bytes of a mechanism without rows: of a counter, of a shown item, and of a stream key.

    Fields that end in `_on_disk` are as stored, others in memory. `note` is a remark for a plan.
    """

    counter: int
    shown: int
    counter_on_disk: int
    counters: int  # no bytes: the most counters of a stream key
    key_least: int  # of a stream key without items
    key_most: int  # with as many counters and shown items as there can be
    key_on_disk: int  # at most
    note: str


_ODDS = 19


def pick_figures(scale: float) -> Iterator[Figure]:
    """Yield the figures of picks by the exponential mechanism.

    They are those of the largest count plus Gumbel noise of this scale.
    """
    meaning = "scale of the Gumbel noise that a pick is equal to"
    yield Figure("pick_scale", scale, meaning)
    # The larger one is picked with odds of exp(gap / scale) to 1: 19 to 1 is 95 %.
    gap = scale * math.log(_ODDS)
    meaning = "of two items so far apart the larger is picked in 95 %"
    yield Figure("pick_gap_95", gap, meaning)
