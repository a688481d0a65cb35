"""How mechanisms that answer queries are measured: order statistics against the exact answer, `pay_what_you_get` as a board of labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.backtest.grid import Combination
from workers.backtest.measure import Watch
from workers.backtest.numbers import METRICS, PLACE, Numbers, fill_errors, fill_unbounded, hits
from workers.backtest.results import BoardRow
from workers.backtest.view import View, kendall
from workers.histogram.snapshots import ReleasedTick
from workers.mechanisms.ledger import Rows
from workers.mechanisms.mechanism import Answers, Items, Release
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.queries import Queries
from workers.replay.stages import ReplayHistogram

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

    def __init__(
        self, combination: Combination, seed: int, histogram: ReplayHistogram, view: View, config: MaxConfig
    ) -> None:
        super().__init__(combination, seed, histogram, view)
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
                self._ranks(out[1 + index], pairs)
        self._errors_of(out[0], numbers, within)

    @staticmethod
    def _errors_of(row: Numbers, pairs: Sequence[Pair], within: Sequence[bool]) -> None:
        if pairs:
            published = np.array([pair.published for pair in pairs])
            fill_errors(row, published - [pair.exact for pair in pairs], None)
            fill_unbounded(row, published - [pair.unbounded for pair in pairs])
            row[PLACE["within_error"]] = sum(within) / len(within)

    def _ranks(self, row: Numbers, pairs: Sequence[Pair]) -> None:
        for pair in pairs:
            if 0 < pair.rank <= self.view.top:
                row[len(METRICS) + pair.rank - 1] = abs(pair.published - pair.exact)

    def _labels(self, row: Numbers, index: int, fields: Fields) -> None:
        """Of queries that name labels: whether they are the right ones, and what they fall short."""
        exact, unbounded = self._sums(index)
        named = [list(map(self._place.__getitem__, _labels_of(answer))) for answer in _answers(fields)]
        named = [places for places in named if places]
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

    def _sums(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Exact sums of a stream key's columns, in the order of the domain, bounded and not."""
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
        """The answers, exact and published, in the order of the queries."""
        if not isinstance(shown.release, Answers):
            return
        for index in range(len(self.view.keys)):
            fields: Fields = shown.release.of_key[index]
            pairs = sorted(self._pairs(index, fields), key=lambda pair: 0 if pair.rank else -pair.exact)
            for rank, pair in enumerate(pairs[: 2 * self.view.top], start=1):
                yield self._row(shown, index, rank, pair.name, pair.exact, pair.unbounded, pair.published)
            exact, unbounded = self._sums(index)
            for answer in _answers(fields):
                for rank, label in enumerate(_labels_of(answer)[: self.view.top], start=1):
                    place = self._place[label]
                    name = f"{answer['query']}: {label}"
                    yield self._row(shown, index, rank, name, int(exact[place]), int(unbounded[place]), None)

    def _row(
        self, shown: ReleasedTick, index: int, rank: int, label: str, exact: int, unbounded: int, published: int | None
    ) -> BoardRow:
        return BoardRow(
            self.combination.run, self.seed, self.histogram.name, self.view.names[index], self.last_tick, shown.end_ms, rank, label,
            exact, unbounded, True, published, None, None,
        )  # fmt: skip


class LabelsWatch(Watch):
    """A run of `pay_what_you_get`: what it named last is the board until it names something else."""

    def __init__(self, combination: Combination, seed: int, histogram: ReplayHistogram, view: View) -> None:
        super().__init__(combination, seed, histogram, view)
        self._last: dict[int, Sequence[str]] = {}

    def seen(self, shown: ReleasedTick) -> None:
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self._last = {}
        if isinstance(shown.release, Answers):
            for index, fields in shown.release.of_key.items():
                if "labels" in fields:
                    self._last[index] = fields["labels"]  # type: ignore[assignment]  # a list of labels, by `PayWhatYouGet`
        super().seen(shown)

    def named(self, release: Release | Items | Answers) -> Rows:
        """The rows of what this tick names."""
        if not isinstance(release, Answers):
            return super().named(release)
        found = [
            self._rows_of(index, fields["labels"])  # type: ignore[arg-type]  # as above
            for index, fields in release.of_key.items()
            if "labels" in fields
        ]
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
            rows, row = self._rows_of(index, labels), out[1 + index]
            rows = rows[: view.top]
            row[PLACE["shown"]] = len(labels)
            hits(row, "", view.counts[rows], one.top.floor, one.top.size)
            hits(row, "_unbounded", view.unbounded[rows], one.top_unbounded.floor, one.top_unbounded.size)
            order = {row_: -place for place, row_ in enumerate(rows.tolist())}
            best = one.top.rows
            here = np.array([order.get(row_, -view.top) for row_ in best.tolist()], dtype=np.int64)
            if len(best) > 1:
                row[PLACE["rank_correlation"]] = kendall(view.counts[best], here)
            first = len(METRICS) + view.top
            row[first : first + len(best)] = np.isin(best, rows)

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        for index, one in enumerate(self.view.keys):
            named = self._rows_of(index, self._last.get(index, ())).tolist()
            yield from self.board_rows(shown, index, one.top.rows.tolist(), named, {})


def watch(combination: Combination, seed: int, histogram: ReplayHistogram, view: View) -> Watch:
    """What measures a run of this mechanism."""
    config = combination.config
    if isinstance(config, MaxConfig):
        return QueryWatch(combination, seed, histogram, view, config)
    kind = LabelsWatch if combination.mechanism.kind == "pay_what_you_get" else Watch
    return kind(combination, seed, histogram, view)


def _answers(fields: Fields) -> Sequence[Fields]:
    """The answers of one stream key: several, or the one that stands for itself."""
    answers: Sequence[Fields] = fields.get("answers") or [fields]
    return answers


def _labels_of(answer: Fields) -> Sequence[str]:
    """The labels that an answer names; none where it is a number."""
    value = answer["value"]
    if isinstance(value, str):
        return [value]
    if str(answer["query"]).startswith("top_k_select"):
        return list(value)
    return []
