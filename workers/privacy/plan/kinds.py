"""What a plan says of each mechanism whatever its settings, and which mechanisms it compares.

    running     counts since the epoch began
    tick        each tick's own counts
    labels      labels of the largest, now and then
    statistic   order statistics of running counts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_ANSWER = "a column's sum, at most; an answer also waits until it has grown enough: see the errors"
_OF_BLOCKS = "one block of ticks shows an item whose noisy count in it is above"
_OF_TICKS = "an item is shown at each tick at which its noisy count is above"
_OVER_A_BAR = (
    "a noisy bar lies this far above the (kbar + 1)-th largest count; items above it are shown"
)
_CLEARLY = "each tick's counts clearly above the (kbar + 1)-th"
_PASSED = "each tick's counts above the threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One mechanism.

    Attributes:
        family: see the module.
        answers: what it publishes.
        on: what its noise is on.
        shown: what its threshold decides.
        counts: whether snapshots carry counts with an sd, rather than an answer.
        bar: whether its threshold is a bar with noise of its own.
        blocks: whether it adds up blocks of ticks, each with its own threshold.
    """

    family: str
    answers: str
    on: str = "each running count"
    shown: str = "an item is shown once its noisy count is above, and then stays shown"
    counts: bool = True
    bar: bool = False
    blocks: bool = False


def _tick(answers: str, shown: str = _OF_TICKS, *, bar: bool = False) -> Kind:
    return Kind(family="tick", answers=answers, on="each count of the tick itself", shown=shown, bar=bar)


def _blocks(answers: str, on: str) -> Kind:
    return Kind(family="running", answers=answers, on=on, shown=_OF_BLOCKS, blocks=True)


def _statistic(answers: str) -> Kind:
    return Kind(family="statistic", answers=answers, on=_ANSWER, counts=False)


# In the order in which they are compared.
KINDS: Mapping[str, Kind] = MappingProxyType({
    "known_base": Kind(family="running", answers="running counts of every declared label"),
    "unk_base": Kind(family="running", answers="running counts of labels that passed the threshold"),
    "sparse_gumb": Kind(family="running", answers="running counts of a top k of declared labels"),
    "misra_gries": _blocks("running counts of frequent labels, too low by up to a share of all",
                           "a count that all its blocks show; what the sketch leaves out comes on top"),
    "meta": _blocks("running counts as sums of one-shot releases", "a count that all its blocks show"),
    "known_gauss": _tick("each tick's counts of every declared label"),
    "known_gumbel": _tick("each tick's top k of declared labels"),
    "positive_gauss": _tick(_PASSED),
    "positive_laplace": _tick(_PASSED),
    "unk_gauss": _tick(_CLEARLY, _OVER_A_BAR, bar=True),
    "limit_dom": _tick("each tick's top k, fewer where they are not clear"),
    "limit_dom_laplace": _tick(_CLEARLY, _OVER_A_BAR, bar=True),
    "pay_what_you_get": Kind(family="labels", answers="labels of the largest so far, without counts",
                             on="the comparison of two items that decides a pick", counts=False),
    "bounded_max": _statistic("one order statistic, a bound on it known"),
    "doubling": _statistic("one order statistic, its order of magnitude"),
    "two_level": _statistic("one order statistic, no bound known"),
    "two_level_k": _statistic("several order statistics"),
})  # fmt: skip


def near(name: str) -> tuple[str, ...]:
    """Return the mechanisms that answer the same question as this one, or a near one."""
    family = KINDS[name].family
    if family == "labels":
        return ("unk_base", "sparse_gumb", "misra_gries", "limit_dom")
    further = {"tick": ("unk_base", "known_base"), "statistic": ("known_base",)}.get(family, ())
    return (*(name for name, kind in KINDS.items() if kind.family == family), *further)
