"""The one-shot mechanisms: every tick shows a one-shot release of that tick's own contributions.

An event lies in one tick, and a tick's release depends on its own contributions only: ticks compose
in parallel, and an epoch of any length costs as much as one release. Parts a_1 + ... <= Dinf of a
user's item in several ticks cost sum a_i^2 / (2 s2) <= Dinf^2 / (2 s2) together; each may be shown,
so discovery and samplers are charged for every release (`Parameters.releases`).

The kbar largest counts of a stream key, h_(1)..h_(kbar), are its candidates where there is a kbar.
Some mechanisms show those above a bar, which lies above h_(kbar+1); others pick up to k of them one
after another, until BOTTOM is picked, which is no item. Guarantees and sources: `algorithms`.

A mechanism's settings declare in `about` what plans, tables and the dashboard say of it (`About`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import numpy as np
from msgspec import Meta

from workers.mechanisms.about import About, Bound, Data, Figure
from workers.mechanisms.budget import Budgeted
from workers.mechanisms.config.checked import whole
from workers.mechanisms.config.histogram import (
    COMPARED_TOP_K,
    Domain,
    HistogramConfig,
    kbar_of,
    most_shown_by,
)
from workers.mechanisms.ledger import Parts, tick_rows
from workers.mechanisms.mechanism import (
    Items,
    Noise,
    Release,
    State,
    expect_type,
    short_hash,
)
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.one_shot import algorithms, bounds
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    Algorithm,
    Cell,
    Name,
    Noisy,
    OneShotNoise,
    Parameters,
    Picking,
    figures_of,
)

_COUNT = "a whole number from 1 to 100,000"
Count = Annotated[int, whole(1, 100_000)]
Kbar = Annotated[
    Count | Literal["private"],
    Meta(description=f'{_COUNT}, or "private": chosen from k to kbar_max'),
]
KBAR_MAX = 1000


class ReleasingConfig(HistogramConfig, frozen=True, kw_only=True):
    """Settings that one-shot mechanisms, `pay_what_you_get` and `meta` share.

    A mechanism declares those of `k`, `kbar` and `kbar_max` that it has: `k` is the most items
    shown at a tick, `kbar` the number of candidates, the largest items, or "private": chosen with
    noise from k to `kbar_max`.
    """

    def parameters(self) -> Parameters:
        """Return the algorithm's parameters; k and kbar are 0 where this mechanism lacks them."""
        kbar = getattr(self, "kbar", None) or 0
        private = kbar == "private"
        return Parameters(
            max_items=self.max_items,
            max_count=self.max_count,
            k=getattr(self, "k", None) or 0,
            kbar=(getattr(self, "kbar_max", None) or KBAR_MAX) if private else kbar,
            private=private,
            domain=len(self.declared),
        )

    def _parameter_complaints(self, name: str) -> Iterator[str]:
        """Yield what is wrong with k and kbar for the algorithm `name`."""
        p = self.parameters()
        kbar_max = getattr(self, "kbar_max", None)
        if name == "limit_dom" and p.k > p.kbar:
            yield f"k = {p.k}: at most {'kbar_max' if p.private else 'kbar'} = {p.kbar}"
        if name == "known_gumbel" and p.k > p.domain:
            yield f"k = {p.k}: at most the {p.domain} labels of the domain"
        if kbar_max is not None and not p.private:
            yield f'kbar_max = {kbar_max}: only with kbar = "private"'


_ON_COUNTS = "each count of the tick itself"
_ANSWERS_ABOVE_THRESHOLD = "each tick's counts above the threshold"
_ANSWERS_ABOVE_BAR = "each tick's counts clearly above the (kbar + 1)-th"
_PAGE_DECLARED = "Every item of a list that was declared beforehand is shown."
_PAGE_UNKNOWN = "An item is shown once its count, with noise, is beyond a limit."
_PAGE_LARGEST = "The largest items only."


class OneShotConfig(ReleasingConfig, frozen=True, kw_only=True):
    """Base of the settings of the one-shot mechanisms; `mechanism` names the algorithm.

    A plan reads `candidates`, the most items that may be shown (0: any number), and
    `threshold_is_count`: whether a threshold is a count rather than a distance from h_(kbar+1).
    """

    @property
    def algorithm(self) -> Name:
        return cast(Name, self.mechanism)

    @property
    def candidates(self) -> int:
        return self.parameters().kbar

    @property
    def threshold_is_count(self) -> bool:
        return self.algorithm not in LIMITED

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with the settings, as sentences for the operator."""
        yield from super().complaints()
        yield from self._parameter_complaints(self.mechanism)


class KnownGaussConfig(OneShotConfig, frozen=True, kw_only=True, tag="known_gauss"):
    """Every declared label, with Gaussian noise."""

    about = About(
        order_in_tables=60,
        family="tick",
        text_in_plan="each tick's counts of every declared label",
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_DECLARED,
        whole_domain=True,
        has_quantiles=True,
        per_item=True,
    )

    domain: Domain


class KnownGumbelConfig(OneShotConfig, frozen=True, kw_only=True, tag="known_gumbel"):
    """The `k` largest declared labels of a tick, picked with Gumbel noise."""

    about = About(
        order_in_tables=70,
        family="tick",
        text_in_plan="each tick's top k of declared labels",
        gaussian_like="known_gauss",
        noise_is_on=_ON_COUNTS,
        text_on_dashboard="The largest items of a declared list.",
    )

    domain: Domain
    k: Count

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield this mechanism's own settings with which a plan compares it with `other`."""
        k = most_shown_by(other) or COMPARED_TOP_K
        yield {"k": max(1, min(k, len(other.declared) or k))}


class PositiveLaplaceConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="positive_laplace"
):
    """Items that occur and whose count with Laplace noise exceeds a threshold."""

    about = About(
        order_in_tables=90,
        family="tick",
        text_in_plan=_ANSWERS_ABOVE_THRESHOLD,
        gaussian_like="positive_gauss",
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_UNKNOWN,
        threshold_rule="each",
        per_item=True,
    )


class PositiveGaussConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="positive_gauss"
):
    """Items that occur and whose count with Gaussian noise exceeds a threshold."""

    about = About(
        order_in_tables=80,
        family="tick",
        text_in_plan=_ANSWERS_ABOVE_THRESHOLD,
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_UNKNOWN,
        threshold_rule="each",
        per_item=True,
    )


class _BarConfig(OneShotConfig, frozen=True, kw_only=True):
    """Base of mechanisms that show those of the kbar largest items that lie above a noisy bar."""

    kbar: Count

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield this mechanism's own settings with which a plan compares it with `other`."""
        yield {"kbar": kbar_of(other, most_shown_by(other) or COMPARED_TOP_K)}


class UnkGaussConfig(_BarConfig, frozen=True, kw_only=True, tag="unk_gauss"):
    """Those of the `kbar` largest items that are above a bar, with Gaussian noise."""

    about = About(
        order_in_tables=100,
        family="tick",
        text_in_plan=_ANSWERS_ABOVE_BAR,
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_LARGEST,
        threshold_rule="bar",
    )


class LimitDomLaplaceConfig(
    _BarConfig, frozen=True, kw_only=True, tag="limit_dom_laplace"
):
    """Those of the `kbar` largest items that are above a bar, with Laplace noise."""

    about = About(
        order_in_tables=120,
        family="tick",
        text_in_plan=_ANSWERS_ABOVE_BAR,
        gaussian_like="unk_gauss",
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_LARGEST,
        threshold_rule="bar",
    )


class LimitDomConfig(OneShotConfig, frozen=True, kw_only=True, tag="limit_dom"):
    """Up to `k` picks among the `kbar` largest items, until BOTTOM, which is no item, is picked."""

    about = About(
        order_in_tables=110,
        family="tick",
        text_in_plan="each tick's top k, fewer where they are not clear",
        gaussian_like="positive_gauss",
        noise_is_on=_ON_COUNTS,
        text_on_dashboard=_PAGE_LARGEST,
    )

    k: Count
    kbar: Kbar
    # The upper end of a kbar that is chosen privately; None is `KBAR_MAX`.
    kbar_max: Count | None = None

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield this mechanism's own settings with which a plan compares it with `other`."""
        k = most_shown_by(other) or COMPARED_TOP_K
        yield {"k": k, "kbar": max(kbar_of(other, k), k)}


class EachTick(Budgeted):
    """Base of mechanisms whose every tick shows a release of its own counts by the `algorithm`."""

    config: OneShotConfig
    algorithm: Algorithm
    _name: Name

    def _parameters(self) -> Mapping[str, object]:
        """Return the public parameters of which the mechanism id, and so its noise, is a hash."""
        return {
            "horizon": self.config.horizon_ticks,
            **({"accounting": "pure"} if self._cost.pure else {}),
            "discovery": {"delta": repr(self.delta_discovery)},
            "algorithm": self.algorithm.public(),
            "domain": domain_hash(self._name, self._domain),
        }

    def sd(self, t: int) -> float:
        self._check(t)
        return self.algorithm.sd

    def noise(self, stream: NoiseStream) -> Noise:
        return OneShotNoise(stream, self.algorithm.table)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release | Items]:
        """Release the tick's own counts; of earlier ticks nothing is kept.

        A declared domain has a row for each label, which the release refers to. Without one items
        get no rows: the release names those that it shows.
        """
        self._check(t)
        noise = expect_type(OneShotNoise, noise)
        # Below, (0, t) is the place of a tick's own counts: level 0, block t.
        if self._domain:
            columns = state.ledger
            state.merge(contributions, add_rows=False)
            cell = Cell(
                columns.tags, columns.keys, columns.counts.copy(), state.key_tags
            )
            # Of the ledger only the domain's rows outlast a tick, and their counts are not stored.
            columns.counts[:] = 0
            columns.counts_changed.clear()
            rows, counts = self.algorithm.release(cell, noise, (0, t))
            return state, Release(rows, counts, self.algorithm.sd, None)
        tick = tick_rows(contributions)
        cell = Cell(tick.tags, tick.keys, tick.counts, state.key_tags)
        rows, counts = self.algorithm.release(cell, noise, (0, t))
        # The order of a tick's rows depends on the data, that of keyed tags does not.
        by_tag = np.lexsort((tick.tags[rows, 1], tick.tags[rows, 0]))
        order = rows[by_tag]
        counts = counts[by_tag]
        keys = tick.keys[order]
        labels = list(tick.labels.take(order))
        return state, Items(
            keys, labels, counts, self.algorithm.sd, self.algorithm.threshold
        )


class OneShot(EachTick):
    """Every tick's own counts, released by one of the `algorithms`. Guarantee: as `Budgeted`."""

    configs = (
        KnownGaussConfig,
        KnownGumbelConfig,
        UnkGaussConfig,
        LimitDomConfig,
        LimitDomLaplaceConfig,
        PositiveLaplaceConfig,
        PositiveGaussConfig,
    )
    algorithm: Noisy | Picking

    def __init__(self, config: OneShotConfig, unit: str = "event") -> None:
        # Labels that nobody declared are discovered, for a part of delta.
        super().__init__(config, unit, discovers=not config.declared)
        self._name = config.algorithm
        # A user's item may be in several ticks, each of which has its release.
        parameters = replace(config.parameters(), releases=self.ticks_of_item())
        # Until `_set_cost`, `_cost` is the budget.
        self.algorithm = algorithms.make_algorithm(
            self._name, parameters, self._cost.rho, self.delta_discovery
        )
        self.law = "laplace" if self._name in algorithms.LAPLACE else "gaussian"
        self._threshold = self.algorithm.threshold
        self._set_cost(self.algorithm.rho, self.algorithm.tv)

    def most_shown(self) -> int | None:
        p = self.config.parameters()
        # The first of these limits that the mechanism has.
        return p.k or p.kbar or len(self._domain) or None

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        return figures_of(self.algorithm)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the noise on shown counts, and how large a count that is not shown may be.

        `known_gauss` hides none. Where picks decide, the second bound is how far a hidden item may
        lie above a shown one, or above h_(kbar+1). Where a bar decides, it is how far above
        h_(kbar+1).
        """
        # Names in KNOWN have a declared list; names in LIMITED look at the kbar largest counts.
        name = self._name
        p = self.config.parameters()
        algorithm = self.algorithm
        releases = self._ticks(data)
        labels = p.domain or data.items
        candidates = min(labels, p.kbar) if name in LIMITED else labels
        # Over all releases, the noisy counts that may be shown.
        values = releases * (p.k if name in PICKING else candidates)
        # With a declared list or kbar candidates, nothing is assumed of the data.
        assumes = ""
        if name not in KNOWN + LIMITED:
            assumes = f"at most {labels:,} labels occur in a tick"
        source_of_counts, source_of_hidden = bounds.SOURCES[name]
        text = f"error of every count shown, over {releases:,} ticks"
        noise = bounds.largest_noise(algorithm, values, beta)
        counts = Bound("counts", text, assumes, beta, noise, source_of_counts)
        if name == "known_gauss":
            return (counts,)
        if isinstance(algorithm, Picking):
            error = bounds.choice_error(p, algorithm, releases, beta)
            if name == "known_gumbel":
                text = "by how much a hidden item exceeds a shown one, at every tick"
                selection = Bound("selection", text, "", beta, error, source_of_hidden)
                return counts, selection
            text = bounds.above_the_rest(p) + " where fewer than k are"
            return counts, Bound("hidden", text, "", beta, error, source_of_hidden)
        text = "true count of an item not shown, at every tick"
        if name in LIMITED:
            text = bounds.above_the_rest(p)
            # An item's noise, and the bar's.
            noise = bounds.largest_noise(algorithm, values, beta, difference=True)
        hidden = (algorithm.threshold or 0) + noise
        return counts, Bound("hidden", text, assumes, beta, hidden, source_of_hidden)


def domain_hash(name: algorithms.Name, domain: Sequence[bytes]) -> str | None:
    """Return the hash of a declared domain; its order decides picks among equal counts."""
    labels = list(domain) if name in algorithms.PICKING else sorted(domain)
    return short_hash(repr(labels).encode()) if domain else None
