"""The one-shot mechanisms: every tick shows a one-shot release of that tick's own contributions.

An event lies in one tick, and a tick's release depends on its own contributions only: ticks compose
in parallel, and an epoch of any length costs as much as one release. Parts a_1 + ... <= Dinf of a
user's item in several ticks cost sum a_i^2 / (2 s2) <= Dinf^2 / (2 s2) together; each may be shown,
so discovery and samplers are charged for every release (`Parameters.releases`). Source:
`algorithms`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from workers.mechanisms.budget import Budgeted
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
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import Cell, OneShotNoise
from workers.mechanisms.one_shot.config import OneShotConfig


class OneShot(Budgeted):
    config: OneShotConfig

    def __init__(self, config: OneShotConfig, unit: str = "event") -> None:
        super().__init__(config, unit, discovers=not config.declared)
        self._name = config.algorithm
        parameters = replace(config.parameters(), releases=self.ticks_of_item())
        budget = self._budget.rho, self.delta_discovery
        self.algorithm = algorithms.make_algorithm(self._name, parameters, *budget)
        self.law = "laplace" if self._name in algorithms.LAPLACE else "gaussian"
        self._threshold = self.algorithm.threshold
        self._set_cost(self.algorithm.rho, self.algorithm.tv)

    def _parameters(self) -> Mapping[str, object]:
        return {
            "horizon": self.config.horizon_ticks,
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
        self._check(t)
        noise = expect_type(OneShotNoise, noise)
        if self._domain:
            columns = state.ledger
            state.merge(contributions, add_rows=False)
            cell = Cell(
                columns.tags, columns.keys, columns.counts.copy(), state.key_tags
            )
            columns.counts[:] = 0  # only the domain's rows outlast a tick
            columns.touched.clear()
            rows, counts = self.algorithm.release(cell, noise, (0, t))
            return state, Release(rows, counts, self.algorithm.sd, None)
        tick = tick_rows(contributions)
        cell = Cell(tick.tags, tick.keys, tick.counts, state.key_tags)
        rows, counts = self.algorithm.release(cell, noise, (0, t))
        by_tag = np.lexsort((tick.tags[rows, 1], tick.tags[rows, 0]))
        order = rows[by_tag]
        counts = counts[by_tag]
        keys = tick.keys[order]
        labels = list(tick.labels.take(order))
        return state, Items(
            keys, labels, counts, self.algorithm.sd, self.algorithm.threshold
        )


def domain_hash(name: algorithms.Name, domain: Sequence[bytes]) -> str | None:
    """Return the hash of a declared domain; its order decides picks among equal counts."""
    labels = list(domain) if name in algorithms.PICKING else sorted(domain)
    return short_hash(repr(labels).encode()) if domain else None
