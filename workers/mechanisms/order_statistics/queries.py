"""Queries on the column sums of a declared domain: order statistics, their columns, all sums.

What: a query is watched through values g_i, each of which is monotone in the sums and moves by at
most Dinf when every sum does (001, Definition 8). A partition closes when one of them has grown;
the answer is then read off the noisy sums, which are private already. Before the first update there
are none: values are those of sums that are all 0, and no label is named (null, or no labels).

    setting           watched values                     answer
    max               the largest sum                    the largest noisy sum (MAXSUM)
    argmax            the largest sum                    the label of the largest (SUMSELECT)
    min               the smallest sum                   the smallest noisy sum
    quantile:Q        the smallest sum that Q d sums     the same of the noisy sums, 0 < Q <= 1
                      do not exceed
    top_k:K           the K largest sums                 the K largest noisy sums
    top_k_select:K    the K largest sums                 their labels
    histogram         every sum                          every label with its noisy sum

Source: 001 section 3.2 (QUANTILE_q, MAXSUM, TOPK, SUMSELECT, TOP-k-SELECT, HISTOGRAM) and
Definition 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.runtime.frozen import Frozen, read_only

QUERY = r"^(max|argmax|min|histogram|quantile:(0\.[0-9]{1,9}|1)|top_k(_select)?:[1-9][0-9]{0,4})\Z"
"""How a query is written in the settings."""
QUERY_IN_WORDS = '"max", "argmax", "min", "quantile:0.5", "top_k:3", "top_k_select:3" or "histogram"'

Sums = NDArray[np.int64]


def watched(query: str, columns: int) -> range:
    """Return the order statistics (0: smallest) by which a query but "histogram" is watched."""
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
    """Yield what is wrong with queries that repeat, or ask for more columns than there are."""
    for query in queries:
        name, _, parameter = query.partition(":")
        if name.startswith("top_k") and int(parameter) > columns:
            yield f'query "{query}": the domain has only {columns:,} labels'
        if name == "quantile" and not Fraction(parameter) > 0:
            yield f'query "{query}": a quantile is above 0 and at most 1'
    if len(set(queries)) < len(queries):
        yield "queries: every one only once"


class Queries(Frozen):
    """The queries of one histogram.

    Args:
        queries: as in the settings.
        labels: of the columns, in their order.

    Attributes:
        k: the number of values watched.
        names_labels: whether a query is answered with labels.
    """

    def __init__(self, queries: Sequence[str], labels: Sequence[str]) -> None:
        self.names = tuple(queries)
        self._labels = tuple(labels)
        columns = len(self._labels)
        self.names_labels = any(query == "argmax" or query.startswith("top_k_select") for query in self.names)
        self._all = "histogram" in self.names
        ranks = set() if self._all else {rank for query in self.names for rank in watched(query, columns)}
        self._ranks = read_only(np.array(sorted(ranks), dtype=np.int64))
        self._only_largest = ranks == {columns - 1}
        self.k = columns if self._all else len(self._ranks)

    def values(self, sums: Sums) -> Sums:
        """Return the k watched values of the sums."""
        if self._all:
            return sums
        if self._only_largest:
            return np.array([sums.max()])
        return np.partition(sums, self._ranks)[self._ranks]

    def answers(self, sums: Sums, *, made: bool = True) -> list[dict[str, object]]:
        """Return what is published of noisy sums, a record for each query.

        If they were not `made` yet they are the zeros before the first update, and name no label.
        """
        return [{"query": query, "value": self._answer(query, sums, made)} for query in self.names]

    def _answer(self, query: str, sums: Sums, made: bool) -> object:
        name, _, parameter = query.partition(":")
        if name == "histogram":
            return [[label, count] for label, count in zip(self._labels, sums.tolist(), strict=True)]
        if name == "argmax":
            return self._labels[int(np.argmax(sums))] if made else None
        if name == "top_k":
            return np.sort(sums)[::-1][: int(parameter)].tolist()
        if name == "top_k_select":
            chosen = np.argsort(-sums, kind="stable")[: int(parameter) if made else 0]
            return [self._labels[row] for row in chosen.tolist()]
        (rank,) = watched(query, len(sums))
        return int(np.partition(sums, rank)[rank])
