"""Runs one mechanism over one stream, without Kafka, and measures the errors that `Mechanism.bounds` promises."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Answers, Items, Mechanism, WindowReleases
from workers.mechanisms.misra_gries.misra_gries import MisraGriesConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.one_shot.algorithms import LIMITED
from workers.mechanisms.one_shot.one_shot import OneShotConfig
from workers.mechanisms.one_shot.pay import PayWhatYouGetConfig
from workers.mechanisms.one_shot.sketches import TickMisraGriesConfig
from workers.mechanisms.order_statistics.config import OrderStatisticConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.mechanisms.running.meta import MetaConfig
from workers.mechanisms.running.sparse_gumb import SparseGumbConfig, SparseState

Counts = Mapping[bytes, int]
_INDEX = np.zeros(1, dtype=np.int32)


class Run:
    """One epoch of one stream key. `shown` and `answer` are what the last tick published."""

    def __init__(self, mechanism: Mechanism, seed: int) -> None:
        self.mechanism = mechanism
        self._key = NoiseKey(seed.to_bytes(32, "big"))
        self._noise = mechanism.noise(self._key.stream(bytes(16)))
        self._labels: list[bytes] = []
        self.state = mechanism.init()
        self.state.key_tags = self._key.tags("k", [b"\0key"])
        mechanism.prepare_key(
            self.state, 0, self._key.tags("k", mechanism.domain()), mechanism.domain()
        )
        self.t = 0
        self.shown: dict[bytes, int] = {}
        self.answer: dict[str, Any] = {}
        self.threshold: int | None = None

    def step(self, counts: Counts) -> None:
        """One tick."""
        self.t += 1
        parts = []
        if counts:
            labels = list(counts)
            numbers = np.fromiter(counts.values(), dtype=np.int64, count=len(counts))
            keys = np.zeros(len(labels), dtype=np.int32)
            parts = [
                (
                    Contributions(
                        ("k",),
                        keys,
                        self._key.tags("k", labels),
                        Texts.of(labels),
                        numbers,
                    ),
                    _INDEX,
                )
            ]
        self.state, release = self.mechanism.step(
            self.state, self.t, parts, self._noise
        )
        assert not isinstance(release, WindowReleases), "of an epoch"
        if isinstance(release, Answers):
            self.answer = dict(release.of_key[0])
            return
        self.threshold = release.threshold
        if isinstance(release, Items):
            labels = list(release.labels)
        else:
            columns = self.state.ledger
            self._labels += [
                columns.label(row) for row in range(len(self._labels), columns.n)
            ]
            labels = [self._labels[row] for row in release.rows.tolist()]
        self.shown = dict(zip(labels, release.counts.tolist(), strict=True))


def measure(
    config: HistogramConfig, stream: Iterable[Counts], seed: int
) -> dict[str, float]:
    """The worst error of each promise, by its name, over all ticks of a stream."""
    run = Run(build(config), seed)
    truth: Counter[bytes] = Counter()
    worst: dict[str, float] = {}
    for counts in stream:
        switching = isinstance(run.state, SparseState) and run.state.used.get(
            0, 0
        ) < _switches(config)
        run.step(counts)
        truth.update(counts)
        own = counts if isinstance(config, OneShotConfig) else truth
        for name, error in _errors(config, run, own, switching):
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _errors(
    config: HistogramConfig, run: Run, truth: Counts, switching: bool
) -> list[tuple[str, float]]:
    if isinstance(config, OrderStatisticConfig):
        return [("answer", _answer_error(run, truth))]
    if isinstance(config, PayWhatYouGetConfig):
        p = config.parameters()
        if run.answer.get("complete", True):
            return []
        named = {label.encode() for label in run.answer["labels"]}
        return [("hidden", _largest_outside(truth, named) - ranked(truth, p.kbar + 1))]
    if isinstance(config, MetaConfig | MisraGriesConfig | TickMisraGriesConfig):
        everything = set(truth) | set(run.shown)
        return [
            (
                "counts",
                max(
                    abs(run.shown.get(label, 0) - truth.get(label, 0))
                    for label in everything
                ),
            )
        ]
    found = [
        (
            "counts",
            float(
                max(
                    (abs(n - truth.get(label, 0)) for label, n in run.shown.items()),
                    default=0,
                )
            ),
        )
    ]
    outside = _largest_outside(truth, run.shown)
    if isinstance(config, SparseGumbConfig):
        if switching:
            found.append(
                ("selection", outside - min(truth.get(label, 0) for label in run.shown))
            )
    elif isinstance(config, UnkBaseConfig):
        if run.threshold is not None:
            found.append(("hidden", outside))
    elif isinstance(config, OneShotConfig):
        name = config.algorithm
        p = config.parameters()
        if name == "known_gumbel":
            found.append(
                ("selection", outside - min(truth.get(label, 0) for label in run.shown))
            )
        elif name == "limit_dom":
            if len(run.shown) < p.k:
                found.append(("hidden", outside - ranked(truth, p.kbar + 1)))
        elif name != "known_gauss":
            found.append(
                (
                    "hidden",
                    outside - (ranked(truth, p.kbar + 1) if name in LIMITED else 0),
                )
            )
    return found


def _answer_error(run: Run, truth: Counts) -> float:
    mechanism = run.mechanism
    if not isinstance(mechanism, OrderStatistics):
        raise TypeError(f"mechanism = {mechanism!r}: answers no query")
    sums = np.array(
        [truth.get(label, 0) for label in mechanism.domain()], dtype=np.int64
    )
    answers: Sequence[Any] = run.answer.get("answers", [run.answer])
    worst = 0.0
    for wanted, found in zip(mechanism.queries.answers(sums), answers, strict=True):
        miss = np.abs(np.array(wanted["value"]) - np.array(found["value"]))
        worst = max(worst, float(miss.max()))
    return worst


def ranked(truth: Counts, rank: int) -> int:
    """The rank-th largest count, 0 where there are fewer."""
    found = sorted(truth.values(), reverse=True)
    return found[rank - 1] if len(found) >= rank else 0


def _largest_outside(truth: Counts, shown: Iterable[bytes]) -> float:
    inside = set(shown)
    return float(
        max((n for label, n in truth.items() if label not in inside), default=0)
    )


def _switches(config: HistogramConfig) -> int:
    return config.switches if isinstance(config, SparseGumbConfig) else 0
