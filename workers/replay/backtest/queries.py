"""How mechanisms that answer queries are measured.

Order statistics are held against the exact answer, `pay_what_you_get` as a board of labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from workers.arrays.tag_index import Rows
from workers.mechanisms.mechanism import Answers, Items, Release
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.queries import Queries
from workers.pipeline.snapshots import ReleasedTick
from workers.replay.backtest.grid import Run
from workers.replay.backtest.measure import METRICS, PLACE, Numbers, Watch, fill_errors
from workers.replay.backtest.results import BoardRow
from workers.replay.backtest.view import Counts, View, kendall
from workers.replay.offline import ReplayHistogram

Fields = Mapping[str, Any]


class Pair(NamedTuple):
    """A number that was published, and what it should be, exactly and without bounds."""

    name: str
    rank: int
    published: int
    exact: int
    unbounded: int


class QueryWatch(Watch):
    """A run of `bounded_max`, `doubling`, `two_level` or `two_level_k`."""

    def __init__(self, run: Run, histogram: ReplayHistogram, view: View, config: MaxConfig) -> None:
        super().__init__(run, histogram, view)
        self._queries = Queries(config.asked, config.domain)
        self._place = {label: i for i, label in enumerate(config.domain)}

    def fill(self, out: Numbers, shown: ReleasedTick) -> None:
        if not isinstance(shown.release, Answers):
            return
        numbers: list[Pair] = []
        within: list[bool] = []
        for index in range(len(self.view.names)):
            fields: Fields = shown.release.of_key[index]
            pairs = list(self._pairs(index, fields))
            inside = [abs(pair.published - pair.exact) <= fields["error"] for pair in pairs]
            numbers += pairs
            within += inside
            if index + 1 < len(out):
                self._errors_of(out[1 + index], pairs, inside)
                self._labels(out[1 + index], index, fields)
                for pair in pairs:
                    if 0 < pair.rank <= self.view.top:
                        error = abs(pair.published - pair.exact)
                        out[1 + index, len(METRICS) + pair.rank - 1] = error
        self._errors_of(out[0], numbers, within)

    @staticmethod
    def _errors_of(row: Numbers, pairs: Sequence[Pair], within: Sequence[bool]) -> None:
        if pairs:
            counts = [(pair.published, pair.exact, pair.unbounded) for pair in pairs]
            published, exact, unbounded = np.array(counts).T
            fill_errors(row, published, exact, unbounded)
            row[PLACE["within_error"]] = sum(within) / len(within)

    def _labels(self, row: Numbers, index: int, fields: Fields) -> None:
        """Fill in whether the labels named are the right ones, and what they fall short."""
        exact, unbounded = self._sums(index)
        named = [[self._place[label] for label in labels] for _, labels in _named(fields)]
        if not named:
            return
        recall: dict[str, list[float]] = {"": [], "_unbounded": []}
        short: list[float] = []
        for places in named:
            best = np.sort(exact)[::-1][: len(places)]
            short.append(float((best - np.sort(exact[places])[::-1]).mean()))
            for suffix, sums in (("", exact), ("_unbounded", unbounded)):
                floor = np.sort(sums)[::-1][len(places) - 1]
                recall[suffix].append(float((sums[places] >= floor).mean()))
        row[PLACE["shortfall"]] = np.mean(short)
        for suffix, shares in recall.items():
            row[PLACE["recall" + suffix]] = row[PLACE["precision" + suffix]] = np.mean(shares)

    def _sums(self, index: int) -> tuple[Counts, Counts]:
        """Return exact sums of a stream key, in the order of the domain, bounded and not."""
        d = len(self._place)
        rows = slice(index * d, (index + 1) * d)
        return self.view.counts[rows], self.view.unbounded[rows]

    def _pairs(self, index: int, fields: Fields) -> Iterator[Pair]:
        exact, unbounded = map(self._queries.answers, self._sums(index))
        for answer, right, wide in zip(_answers(fields), exact, unbounded, strict=True):
            query = str(answer["query"])
            of: tuple[Any, Any, Any] = (answer["value"], right["value"], wide["value"])
            if query == "histogram":
                for (label, published), (_, own), (_, without) in zip(*of, strict=True):
                    yield Pair(label, 0, published, own, without)
            elif query.startswith("top_k:"):
                for rank, (published, own, without) in enumerate(zip(*of, strict=True), start=1):
                    yield Pair(f"{query} {rank}", rank, published, own, without)
            elif isinstance(answer["value"], int):
                yield Pair(query, 0, *of)

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Yield the answers, exact and published, in the order of the queries."""
        if not isinstance(shown.release, Answers):
            return
        for index in range(len(self.view.keys)):
            fields: Fields = shown.release.of_key[index]
            pairs = sorted(self._pairs(index, fields), key=lambda pair: 0 if pair.rank else -pair.exact)
            for rank, pair in enumerate(pairs[: 2 * self.view.top], start=1):
                counts = (pair.exact, pair.unbounded, pair.published)
                yield self.board_row(shown, index, rank, pair.name, *counts)
            for query, labels in _named(fields):
                for rank, label in enumerate(labels[: self.view.top], start=1):
                    exact, unbounded = (int(sums[self._place[label]]) for sums in self._sums(index))
                    name = f"{query}: {label}"
                    yield self.board_row(shown, index, rank, name, exact, unbounded, None)


class LabelsWatch(Watch):
    """A run of `pay_what_you_get`: what it named last is the board until it names others."""

    def __init__(self, run: Run, histogram: ReplayHistogram, view: View) -> None:
        super().__init__(run, histogram, view)
        self._last: dict[int, Sequence[str]] = {}

    def seen(self, shown: ReleasedTick) -> None:
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self._last = {}
        if isinstance(shown.release, Answers):
            self._last |= _labels_shown(shown.release)
        super().seen(shown)

    def named(self, release: Release | Items | Answers) -> Rows:
        """Return the rows of what this tick names."""
        if not isinstance(release, Answers):
            return super().named(release)
        found = [self._rows_of(index, labels) for index, labels in _labels_shown(release).items()]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _rows_of(self, index: int, labels: Sequence[str]) -> Rows:
        return self.view.rows_of(index, [label.encode() for label in labels])

    def fill(self, out: Numbers, shown: ReleasedTick) -> None:
        view = self.view
        out[0, PLACE["shown"]] = sum(map(len, self._last.values()))
        for index, one in enumerate(view.keys):
            labels = self._last.get(index)
            if labels is None:
                continue  # nothing was asked yet
            rows, row, best = self._rows_of(index, labels)[: view.top], out[1 + index], one.top.rows
            row[PLACE["shown"]] = len(labels)
            self.fill_hits(row, one, rows)
            order = {named: -place for place, named in enumerate(rows.tolist())}
            here = np.array([order.get(named, -view.top) for named in best.tolist()], dtype=np.int64)
            if len(best) > 1:
                row[PLACE["rank_correlation"]] = kendall(view.counts[best], here)
            first = len(METRICS) + view.top
            row[first : first + len(best)] = np.isin(best, rows)

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        for index in range(len(self.view.keys)):
            named = self._rows_of(index, self._last.get(index, ())).tolist()
            yield from self.board_rows(shown, index, named, {})


def watch(run: Run, histogram: ReplayHistogram, view: View) -> Watch:
    """Return what measures a run of this mechanism."""
    config = run.combination.config
    if isinstance(config, MaxConfig):
        return QueryWatch(run, histogram, view, config)
    kind = LabelsWatch if run.combination.mechanism.kind == "pay_what_you_get" else Watch
    return kind(run, histogram, view)


def _answers(fields: Fields) -> Sequence[Fields]:
    """Return the answers of one stream key: several, or the fields themselves as the only one."""
    answers: Sequence[Fields] = fields.get("answers") or [fields]
    return answers


def _named(fields: Fields) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the queries that name labels, with these."""
    for answer in _answers(fields):
        query, value = str(answer["query"]), answer["value"]
        if isinstance(value, str):
            yield query, [value]
        elif query.startswith("top_k_select") and value:
            yield query, value


def _labels_shown(release: Answers) -> dict[int, Sequence[str]]:
    """Return the labels that `pay_what_you_get` names at a tick, by stream key."""
    found: Any = {key: of["labels"] for key, of in release.of_key.items() if "labels" in of}
    return dict(found)
