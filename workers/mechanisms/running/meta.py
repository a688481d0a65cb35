"""MetaAlgo: running counts as sums of one-shot releases of the tree's complete cells.

    Symbol      Here
    r           `radix`; r* = argmin (r - 1) L_r^2
    L_r         digits of the horizon in base r; an event lies in one cell of each level
    cell        (level j, block q): ticks q r^j + 1 .. (q + 1) r^j
    h_cell      the histogram of the cell's own contributions

    release(t) = sum, over the cells that t's base-r digits name, of what the one-shot algorithm
                 made of h_cell

The cells of t are complete by t, so the state is the open cells' histograms, one a level, and the
sums of the released ones: not the stream, as 000 says. A cell that is never named (the last block
of its parent) is not released. Each cell's algorithm gets rho / L_r and delta_discovery / L_r. An
item that a cell does not show counts as 0 in it, so over an unknown domain counts are low by what
was cut off; what the cells show is at most each threshold short.

Settings: restricted (`known_gauss`, `unk_gauss`, `positive_gauss`, `positive_laplace`,
`limit_dom_laplace`: cost grows with D0) or unrestricted (`known_gumbel`, `limit_dom`: cost grows
with k), over a known or an unknown domain. A user's item may come in parts, at most Dinf of them,
in as many cells of a level: as with `OneShot` these cost no more rho than one of Dinf, and
discovery and samplers are charged for each (`Parameters.releases`). Source: 000 Alg. 7 and Theorem
3; its sqrt(L_r) tau and delta / L_r a cell are the same split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workers.mechanisms.budget import OnSplit, split
from workers.mechanisms.counters.tree import best_radix, blocks_up_to, digits_of
from workers.mechanisms.mechanism import Domained, Noise, Release, State, head, ticks_of_item
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.one_shot.algorithms import KNOWN, make_algorithm
from workers.mechanisms.one_shot.config import MetaConfig
from workers.mechanisms.one_shot.mechanism import check_horizon, domain_hash, one_shot_noise
from workers.mechanisms.one_shot.release import Cell, OneShotNoise
from workers.mechanisms.running.meta_state import MetaState
from workers.mechanisms.tick_rows import Parts


class Meta(OnSplit, Domained):
    """Running counts from one-shot releases.

    Guarantee: (epsilon(rho, delta_conversion), delta_conversion + delta_discovery +
    delta_numerical)-DP for one event added or removed, over all ticks of an epoch together, on
    streams that may react to what was released.
    """

    kind = "meta"

    def __init__(self, config: MetaConfig, unit: str = "event") -> None:
        if config.horizon_ticks is None:
            raise ValueError("horizon = unbounded: meta needs a number of ticks")
        self.config = config
        self._horizon = config.horizon_ticks
        self._known = config.algorithm in KNOWN
        self._domain = tuple(label.encode() for label in config.domain or ())
        self.radix = config.radix or best_radix(self._horizon)
        self.levels = digits_of(self._horizon, self.radix)
        self._split = split(config, discovers=not self._known)
        self.algorithm = make_algorithm(
            config.algorithm,
            replace(config.parameters(), releases=ticks_of_item(config, unit)),
            math.nextafter(self._split.rho / self.levels, 0.0),
            self._split.delta_discovery / self.levels * (1 - 1e-12),
        )
        spent = math.nextafter(self.levels * self.algorithm.rho, math.inf)
        tv = math.nextafter(self.levels * self.algorithm.tv, math.inf)
        self._promise(unit, spent, tv)

    def public(self) -> Mapping[str, object]:
        return {
            **head(self.kind, self.config, self.guarantee),
            "horizon": self._horizon,
            "discovery": {"delta": repr(self._split.delta_discovery)},
            "radix": self.radix,
            "levels": self.levels,
            "algorithm": self.algorithm.public(),
            "domain": domain_hash(self.config.algorithm, self._domain),
        }

    def cells(self, t: int) -> int:
        """Return how many cells' noisy histograms are added at t: the sum of its digits."""
        check_horizon(self.kind, t, self._horizon)
        total = 0
        while t:
            t, digit = divmod(t, self.radix)
            total += digit
        return total

    def sd(self, t: int) -> float:
        """Return that of an item which every cell of t shows; others have less."""
        return self.algorithm.sd * math.sqrt(self.cells(t))

    def difference_sd(self, t: int, since: int) -> float:
        """Return that of an item which every cell of both ticks shows, as `known_gauss` does."""
        return self.algorithm.sd * math.sqrt(len(self._named(t) ^ self._named(since)))

    def _named(self, t: int) -> set[tuple[int, int]]:
        """Return the cells that t's digits name; none at tick 0."""
        if t:
            check_horizon(self.kind, t, self._horizon)
        found = blocks_up_to(t, self.radix, self.levels)
        return {(level, block) for level, first, last in found for block in range(first, last)}

    def threshold(self, t: int) -> int | None:
        """Return a cell's own: an item is shown once one cell shows it."""
        check_horizon(self.kind, t, self._horizon)
        return self.algorithm.threshold

    def init(self) -> MetaState:
        return MetaState(self.levels)

    def noise(self, stream: NoiseStream) -> Noise:
        return OneShotNoise(stream, self.algorithm.table)

    def step(self, state: State, t: int, contributions: Parts, noise: Noise) -> tuple[State, Release]:
        """Release the largest cell that is complete with t, and add up; see `Mechanism.step`."""
        check_horizon(self.kind, t, self._horizon)
        if not isinstance(state, MetaState):
            raise TypeError(f"state = {state!r}: must be the mechanism's own")
        drawn, columns = one_shot_noise(noise), state.ledger
        before = columns.counts.copy()
        for part, key_index in contributions:
            columns.merge(part, key_index, add_rows=not self._known)
        state.grow()
        counts = columns.counts.copy()
        counts[: len(before)] -= before
        level, block = 0, t
        while block % self.radix == 0:
            state.add_open(level + 1, counts)
            counts = state.close(level + 1)
            state.forget(level)
            level, block = level + 1, block // self.radix
        if level + 1 < self.levels:
            state.add_open(level + 1, counts)
        if self._known:
            cell, present = Cell(columns.tags, columns.keys, counts, state.key_tags), None
        else:
            present = np.flatnonzero(counts)
            cell = Cell(columns.tags.take(present, axis=0), columns.keys[present], counts[present], state.key_tags)
        rows, noisy = self.algorithm.release(cell, drawn, (level, block - 1))
        state.add_noisy(level, rows if present is None else present[rows], noisy)
        found, sums = state.shown()
        return state, Release(found, sums, self.sd(t), self.algorithm.threshold)
