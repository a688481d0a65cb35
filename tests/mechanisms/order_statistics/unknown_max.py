"""Shared helpers for paper 001's mechanisms: runs, silent noise, and the printed algorithms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.mechanisms.small import KEY, SMALL, part, start
from workers.arrays.types import Tags
from workers.mechanisms.mechanism import Answers
from workers.mechanisms.order_statistics.engine import (
    OrderStatisticNoise,
    OrderStatistics,
    OrderStatisticState,
)
from workers.mechanisms.registry import MECHANISMS, build
from workers.runtime.frozen import read_only

Numbers = NDArray[np.int64]


def make(kind: str, columns: int, **changes: object) -> OrderStatistics:
    own: dict[str, dict[str, Any]] = {
        "bounded_max": {"c_max": 500},
        "two_level_k": {"queries": ("max", "min")},
    }
    budget = {"horizon": 512, "epsilon": None if "rho" in changes else 2.0}
    values = SMALL | own.get(kind, {}) | budget | changes
    values.setdefault("domain", tuple(f"p{i}" for i in range(columns)))
    mechanism = build(MECHANISMS[kind](**values))
    assert isinstance(mechanism, OrderStatistics)
    return mechanism


class Silent(OrderStatisticNoise):
    """Noise source that returns zeros; what remains depends on the sums alone."""

    def outer_tau(self, *_: Any, **__: Any) -> int:
        return 0

    outer_mu = inner_tau = inner_mu = outer_tau

    def outer_columns(self, tags: Tags, *_: Any, **__: Any) -> Numbers:
        return np.zeros(len(tags), dtype=np.int64)

    inner_columns = outer_columns

    def updates(self, tag: Tags, segment: int, interval: int, k: int) -> Numbers:
        return np.zeros(k, dtype=np.int64)


class Run:
    def __init__(
        self,
        mechanism: OrderStatistics,
        seed: int = 0,
        keys: int = 1,
        silent: bool = False,
    ) -> None:
        self.stream = KEY.stream(seed.to_bytes(16, "little"))
        self.mechanism = mechanism
        self.keys = [f"s{key}" for key in range(keys)]
        self.noise = (Silent if silent else OrderStatisticNoise)(mechanism, self.stream)
        self.state: OrderStatisticState = start(mechanism, self.keys)

    def tags(self, key: int) -> Tags:
        return KEY.tags(self.keys[key], list(self.mechanism.domain()))

    def step(
        self, t: int, rows: Sequence[Numbers]
    ) -> Mapping[int, Mapping[str, object]]:
        """Step one tick that adds row rows[key] to the sums of each stream key."""
        parts = []
        labels = self.mechanism.domain()
        for key, row in zip(self.keys, rows, strict=False):
            counts = {labels[i]: int(row[i]) for i in np.flatnonzero(row).tolist()}
            if counts:
                parts.append(part({key: counts}, self.keys))
        _, release = self.mechanism.step(self.state, t, parts, self.noise)
        assert isinstance(release, Answers)
        return release.of_key


@cache
def rows_of(
    ticks: int, columns: int, seed: int, ones: int = 1, most: int = 1
) -> Sequence[Numbers]:
    """Return rows where `ones` columns get 1..most, the first columns more often."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, columns + 1)
    rows = []
    for _ in range(ticks):
        row = np.zeros(columns, dtype=np.int64)
        hit = rng.choice(columns, size=ones, replace=False, p=weights / weights.sum())
        row[hit] = rng.integers(1, most + 1, size=ones)
        rows.append(read_only(row))
    return tuple(rows)


@dataclass
class Literal:
    """001 Algorithms 2, 5 to 8, 10 to 12 as printed, keeping their c and s, with H fed with c."""

    run: Run
    key: int = 0

    def shown(self, rows: Sequence[Numbers]) -> list[tuple[list[int], int]]:
        """Return (noisy sums shown, tick when they were made) after each tick."""
        mechanism = self.run.mechanism
        noise = self.run.noise
        tags = self.run.tags(self.key)
        tag = self.run.state.key_tags[self.key : self.key + 1]
        g = mechanism.queries.values
        k = mechanism.queries.k
        d = len(mechanism.domain())
        outer = mechanism.segments
        inner = mechanism.inner
        big_s = np.zeros(d, dtype=np.int64)  # the outer level's s
        segment = 1
        out = np.zeros(d, dtype=np.int64)
        since = 0
        found: list[tuple[list[int], int]] = []
        threshold = outer.first if outer else 0

        def begin() -> tuple[Numbers, Numbers, Numbers, Numbers, int, list[int]]:
            zeros = np.zeros(d, dtype=np.int64)
            step = mechanism.intervals(segment).step if inner else 0
            thresholds = [int(v) + step for v in g(out)]
            return out.copy(), zeros, out.copy(), zeros, 1, thresholds

        s, c, base, h_total, interval, thresholds = begin()
        for t, x in enumerate(rows, 1):
            big_s = big_s + x
            if (
                outer
                and segment < outer.most
                and max(g(big_s)) + noise.outer_mu(self.key, tag, t)
                > threshold + noise.outer_tau(tag, segment)
            ):
                big_s = big_s + noise.outer_columns(tags, segment)
                segment = segment + 1
                threshold = threshold * 2
                out = big_s.copy()
                since = t
                s, c, base, h_total, interval, thresholds = begin()
            elif inner:
                c = c + x
                s = s + x
                numbers = mechanism.intervals(segment)
                mu = noise.inner_mu(self.key, tag, t)
                tau = noise.inner_tau(tag, segment, interval)
                if interval <= numbers.capacity and any(
                    int(v) + mu > bound + tau
                    for v, bound in zip(g(s), thresholds, strict=True)
                ):
                    if k == 1:
                        thresholds = [thresholds[0] + numbers.step]
                    else:
                        u = noise.updates(tag, segment, interval, k)
                        for i, v in enumerate(g(s).tolist()):
                            if v + int(u[i]) > thresholds[i] - numbers.clearance:
                                thresholds[i] += numbers.step
                    h_total = h_total + c
                    s = h_total + noise.inner_columns(tags, segment, interval) + base
                    c = np.zeros(d, dtype=np.int64)
                    interval = interval + 1
                    out = s.copy()
                    since = t
            found.append((out.tolist(), since))
        return found


def assert_as_printed(mechanism: OrderStatistics, rows: Sequence[Numbers]) -> int:
    """Run both on two stream keys, one with rows reversed; return the number of new answers."""
    run = Run(mechanism, seed=7, keys=2)
    streams = [list(rows), list(rows)[::-1]]
    expected = [Literal(run, key).shown(streams[key]) for key in range(2)]
    made = 0
    for t in range(1, len(rows) + 1):
        of_key = run.step(t, [stream[t - 1] for stream in streams])
        for key in range(2):
            sums, since = expected[key][t - 1]
            answers = mechanism.queries.answers(
                np.array(sums, dtype=np.int64), updated=since > 0
            )
            wanted = answers[0] if len(answers) == 1 else {"answers": answers}
            made += since == t
            got = {
                name: value for name, value in of_key[key].items() if name != "error"
            }
            assert got == {**wanted, "since": since}
    return made
