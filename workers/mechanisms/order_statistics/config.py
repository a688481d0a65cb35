"""Settings of the order statistics, their queries, and the split of their budget.

Paper 001 is Henzinger, Sricharan, Steiner (docs/mechanisms.md, Papers).

A column is a declared label, its sum the running count. Queries are over the column sums, watched
through values g_i, each monotone in the sums and moving by at most Dinf when every sum does (001,
Definition 8). When one of them has grown, the interval closes and the answer is computed from the
noisy sums, which are already private. Before the first such update all sums are zero, and no label
is named. d is the number of columns, k that of watched values.

    setting           watched values                     answer
    max               the largest sum                    the largest noisy sum (MAXSUM)
    argmax            the largest sum                    the label of the largest (SUMSELECT)
    min               the smallest sum                   the smallest noisy sum
    quantile:Q        the smallest sum that Q d sums     the same of the noisy sums, 0 < Q <= 1
                      do not exceed
    top_k:K           the K largest sums                 the K largest noisy sums
    top_k_select:K    the K largest sums                 their labels
    histogram         every sum                          every label with its noisy sum

Source: 001 section 3.2 (QUANTILE_q, MAXSUM, TOPK, SUMSELECT, TOP-k-SELECT, HISTOGRAM).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from workers.arrays.types import Longs
from workers.mechanisms import accounting
from workers.mechanisms.accounting import PrivacyCost, float_up
from workers.mechanisms.budget import NUMERICAL_SHARE
from workers.mechanisms.config.histogram import (
    DEFAULT_COUNTER,
    Domain,
    HistogramConfig,
)
from workers.runtime.frozen import Frozen, read_only

QUERY = r"^(max|argmax|min|histogram|quantile:(0\.[0-9]{1,9}|1)|top_k(_select)?:[1-9][0-9]{0,4})\Z"
"""How a query is written in the settings."""
_QUERIES = (
    '"max", "argmax", "min", "quantile:0.5", "top_k:3", "top_k_select:3" or "histogram"'
)
_ONE_QUERY = (
    '"max", "argmax", "min" or "quantile:0.5" (a list of queries needs "two_level_k")'
)


def watched(query: str, columns: int) -> range:
    """Return the ranks (0: smallest) of the sums that a query watches; not for "histogram"."""
    name, _, parameter = query.partition(":")
    if name in ("max", "argmax"):
        return range(columns - 1, columns)
    if name == "min":
        return range(1)
    if name == "quantile":
        rank = max(1, math.ceil(Fraction(parameter) * columns))
        return range(rank - 1, rank)
    return range(max(0, columns - int(parameter)), columns)


def query_complaints(queries: Sequence[str], columns: int) -> Iterator[str]:
    """Yield queries that do not fit a domain of so many labels, or occur twice."""
    for query in queries:
        name, _, parameter = query.partition(":")
        if name.startswith("top_k") and int(parameter) > columns:
            yield f'query "{query}": the domain has only {columns:,} labels'
        if name == "quantile" and not Fraction(parameter) > 0:
            yield f'query "{query}": a quantile is above 0 and at most 1'
    if len(set(queries)) < len(queries):
        yield "queries: every one only once"


class Queries(Frozen):
    """A histogram's queries over the sums of its declared labels.

    They watch `k` values: the sums of some ranks, 0 the smallest, or all of them.
    """

    def __init__(self, queries: Sequence[str], labels: Sequence[str]) -> None:
        self.asked = tuple(queries)
        self._labels = tuple(labels)
        columns = len(self._labels)
        # Whether an answer names labels.
        self.names_labels = any(
            re.match("argmax|top_k_select", query) for query in self.asked
        )
        self._watches_all = "histogram" in self.asked
        # Of the sums that are watched, unless all are.
        ranks: set[int] = set()
        if not self._watches_all:
            ranks.update(*(watched(query, columns) for query in self.asked))
        self._ranks = read_only(np.array(sorted(ranks), dtype=np.int64))
        self._only_largest = ranks == {columns - 1}
        self.k = columns if self._watches_all else len(self._ranks)

    def values(self, sums: Longs) -> Longs:
        """Return the watched values of the column sums (d,)."""
        if self._watches_all:
            return sums
        if self._only_largest:
            return np.array([sums.max()])
        return np.partition(sums, self._ranks)[self._ranks]

    def answers(self, sums: Longs, *, updated: bool = True) -> list[dict[str, object]]:
        """Return a published record per query, from noisy sums (d,).

        `updated` False: before the first update, when the sums are zeros that name no label.
        """
        return [
            {"query": query, "value": self._answer(query, sums, updated)}
            for query in self.asked
        ]

    def _answer(self, query: str, sums: Longs, updated: bool) -> object:
        """Return what a query's published record has as its value, by the module's table."""
        name, _, parameter = query.partition(":")
        if name == "histogram":
            return list(map(list, zip(self._labels, sums.tolist(), strict=True)))
        if name == "argmax":
            return self._labels[int(np.argmax(sums))] if updated else None
        if name == "top_k":
            return np.sort(sums)[::-1][: int(parameter)].tolist()
        if name == "top_k_select":
            number = int(parameter) if updated else 0
            chosen = np.argsort(-sums, kind="stable")[:number]
            return [self._labels[row] for row in chosen.tolist()]
        (rank,) = watched(query, len(sums))
        return int(np.partition(sums, rank)[rank])


# Queries that watch one value.
_SINGLE = ("max", "argmax", "min", "quantile")
# Above the total variation distance from its law of any noise of a column or update: tables have
# below 2^27 thresholds, each off by 2^-128.
CELL_TV = 2.0**-100
Query = Annotated[str, Meta(pattern=QUERY)]


class OrderStatisticConfig(HistogramConfig, frozen=True, kw_only=True):
    """A histogram of order statistics; its error depends on their size and little on the horizon.

    `accounting` is "zcdp" (the default: fixed shares, one-sided noise where neighbours allow it) or
    "pure", the paper's own noise; delta then covers only the samplers' distance from their laws.
    The error exceeds its bound at some tick of an epoch with probability `beta`.
    """

    domain: Domain
    accounting: Literal["zcdp", "pure"] = "zcdp"
    beta: Annotated[
        float, Meta(ge=1e-9, le=0.5, description="a number from 1e-9 to 0.5")
    ] = 0.05

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with the settings, as sentences for the operator."""
        yield from super().complaints()
        if self.accounting == "pure" and self.epsilon is None:
            yield 'accounting = "pure": needs epsilon, not rho'
        if self.accounting == "pure" and self.counter != DEFAULT_COUNTER:
            yield f'counter = "{self.counter}": accounting = "pure" has a tree of its own, of base 2 with Laplace noise'
        yield from query_complaints(self.asked, len(self.domain))

    @property
    def error_beta(self) -> float:
        return self.beta

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield this mechanism's own settings with which a plan compares it with `other`.

        They ask the first query of `other` that watches one value, in zCDP. That is the default, so
        a plan names the accounting only where that of `other` differs.
        """
        queries = (one for one in other.asked if one.partition(":")[0] in _SINGLE)
        compared = cls._query_settings(next(queries, "max"))
        if getattr(other, "accounting", "zcdp") == "pure":
            compared["accounting"] = "zcdp"
        yield compared

    @classmethod
    def _query_settings(cls, query: str) -> dict[str, Any]:
        """Return the settings with which this mechanism asks one query."""
        return {"query": query}

    @property
    def pure(self) -> bool:
        return self.accounting == "pure"

    @property
    def most_columns(self) -> int:
        """Return D: the most columns that one event changes."""
        return min(self.max_items, len(self.domain))


class OneQueryConfig(OrderStatisticConfig, frozen=True, kw_only=True):
    """Settings of a mechanism that answers one `query`, over one watched value."""

    query: Annotated[Query, Meta(description=_ONE_QUERY)] = "max"

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.query.partition(":")[0] not in _SINGLE:
            yield f'query = "{self.query}": watches several values, which only "two_level_k" does'

    @property
    def asked(self) -> tuple[str, ...]:
        return (self.query,)


class QueryListConfig(OrderStatisticConfig, frozen=True, kw_only=True):
    """Settings of a mechanism that answers a list of `queries`."""

    queries: Annotated[
        Annotated[tuple[Query, ...], Meta(min_length=1, max_length=100)],
        Meta(description=f"a list of 1 to 100 of {_QUERIES}"),
    ]

    @property
    def asked(self) -> tuple[str, ...]:
        return self.queries

    @classmethod
    def _query_settings(cls, query: str) -> dict[str, Any]:
        return {"queries": (query,)}


def shares_of(
    config: OrderStatisticConfig, weights: Mapping[str, tuple[int, int]]
) -> dict[str, Fraction]:
    """Return each part's share of the budget, of epsilon if accounting is pure, else of rho.

    Parts are what is paid for separately, such as "test" or "sums" (`engine`). `weights` has each
    part's weight, (in zCDP, in pure accounting). Pure accounting has an epsilon, zCDP an epsilon or
    a rho, so the default of 0 is never used.
    """
    if config.pure:
        total = Fraction(config.epsilon or 0)
    else:
        rho = config.rho
        if rho is None:
            rho = accounting.rho_of(
                config.epsilon or 0.0, config.delta * (1 - NUMERICAL_SHARE)
            )
        total = Fraction(rho)
    # False is 0, the place of zCDP, and True is 1.
    weight_of = {part: pair[config.pure] for part, pair in weights.items()}
    of_all = sum(weight_of.values())
    return {part: total * weight / of_all for part, weight in weight_of.items()}


def combined_cost(
    config: OrderStatisticConfig,
    shares: Mapping[str, Fraction],
    spent: Mapping[str, Fraction],
    tv: float,
) -> PrivacyCost:
    """Return the combined cost of the parts, after their noise was rounded up.

    `shares` is what each part may spend, `spent` what it spends: rho, or pure epsilon. `tv` is the
    total variation distance from its law of all noise that hides one event, in all draws together.
    Raises ValueError if a part spends more, or delta cannot cover `tv`.
    """
    over = [part for part, amount in spent.items() if amount > shares[part]]
    if over:
        raise ValueError(f"budget: {', '.join(over)} would cost more than its share")
    total = sum(shares.values(), Fraction(0))
    epsilon = config.epsilon
    if config.pure:
        # epsilon-DP is epsilon^2 / 2-zCDP.
        rho = float_up(total**2 / 2)
    else:
        # Rounding leaves a little of the budget unspent; epsilon is that of the whole budget.
        rho = float_up(min(total, sum(spent.values(), Fraction(0))))
        if epsilon is None:
            epsilon = accounting.epsilon_of(
                float_up(total), config.delta * (1 - NUMERICAL_SHARE)
            )
    numerical = accounting.sampler_delta(epsilon or 0.0, 1, tv)
    share = 1.0 if config.pure else NUMERICAL_SHARE
    accounting.check_sampler_delta(config.delta, epsilon or 0.0, numerical, share)
    failures = (("numerical", config.delta * share),)
    return PrivacyCost(
        rho, epsilon or 0.0, config.delta, failures=failures, pure=config.pure
    )
