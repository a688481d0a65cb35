"""Running counts with a pure epsilon from Misra-Gries sketches: `misra_gries` with `release =
"pure"`, over a declared domain.

What: each cell of the tree that is over is released once by Algorithm 3: every counter is lowered
by the sum of all over k + 1, every label of the domain gets noise, and the k largest are shown. All
is held times k + 1, so that it stays whole; what is published is rounded once.

    Symbol      Here
    k, d        `size`; labels of the domain
    L, m        `levels`; max_items * max_count, items that one event adds to the stream
    c           counters of a cell's sketch; released is (k+1) c - sum of all c, at least 0
                (`release.reduced`)
    b           `scale` of the discrete Laplace noise, in units of 1/(k+1)

Cost: an item more changes these by 2k - 1 in l1, and so an event by m (2k - 1) in each of the L
cells that it lies in: epsilon = L m (2k - 1) / b, basic composition, and no delta but for the
samplers' distance. A cell is m (2k - 1) / b-DP, which is (m (2k - 1) / b)^2 / 2 in zCDP, so rho =
epsilon^2 / (2 L). The base that is best for the horizon is that of (r - 1) L^3: the variance of a
cell grows with L^2, where zCDP has L. A cell is released whether it has had items or not: that
nobody came must not show. Error: with n items of the domain up to t, a count is too low by up to n
/ (k+1) in all before noise, what the sketch lost included: the sum of a cell's counters is n_cell -
(k+1) a, with a items that each took one from every counter, so that n_cell / (k+1) = sum / (k+1) +
a (Lemma 1 of Section 6). Most counts are too low by nearly all of that.

Source: Lebeda and Tetek, Algorithm 3, Section 6 (the sensitivity corrected in `release`) and Lemma
4 of Section 8 for events of several items; Bun and Steinke 2016, Proposition 1.4, for rho.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Tags
from workers.mechanisms.accounting import Cost, check_sampler_delta, float_up, sampler_delta
from workers.mechanisms.mechanism import Guarantee, Noise, State, head
from workers.mechanisms.misra_gries.misra_gries import MisraGries, MisraGriesConfig, largest_parts, pure_scale, whole
from workers.mechanisms.misra_gries.sketch import SKETCH_VERSION, Sketch, SketchBatch, feed
from workers.mechanisms.misra_gries.state import SketchState
from workers.mechanisms.noise.discrete_laplace import LARGEST_SCALE, discrete_laplace
from workers.mechanisms.noise.discrete_laplace import TABLE_VERSION as LAPLACE_TABLE_VERSION
from workers.mechanisms.order_statistics.config import domain_hash


class PureMisraGries(MisraGries):
    """Running counts of the frequent items of a domain.

    Guarantee: epsilon-DP, up to the samplers' distance (delta), for the content of one event, over
    all ticks of an epoch together, on streams that may react to what was released. Error: see the
    module; too high by no more than the noise, and half a count for rounding.
    """

    law = "laplace"

    def _calibrate(self, unit: str) -> None:
        config, levels, size = self.config, self.tree.levels, self.config.size
        if config.epsilon is None or config.domain is None:
            raise ValueError('release = "pure": needs epsilon and a domain')
        self._labels = tuple(label.encode() for label in config.domain)
        events = levels * config.max_items * config.max_count
        needed = events * (2 * size - 1) / Fraction(config.epsilon)
        if needed > LARGEST_SCALE:
            raise ValueError(
                f'release = "pure": {levels} levels * max_items * max_count * (2 * size - 1) / epsilon = {float(needed):,.0f}: '
                f"at most {LARGEST_SCALE:,}, with a smaller size or a larger epsilon"
            )
        self.scale = pure_scale(size, Fraction(config.epsilon) / events)
        table = discrete_laplace(self.scale)
        self._table = table
        # What one cell may cost; the noise was rounded up.
        of_cell = Fraction(config.max_items * config.max_count * (2 * size - 1)) / self.scale
        rho = float_up(levels * of_cell**2 / 2)
        # Labels whose statistic one event may change: counters of either neighbour's sketches.
        changed = levels * min(2 * size, len(self._labels))
        numerical = sampler_delta(config.epsilon, changed, table.tv)
        check_sampler_delta(config.delta, config.epsilon, numerical, 1.0)
        self._guarantee = Guarantee(unit=unit, rho=rho, epsilon=config.epsilon, delta=config.delta)
        units = (size + 1) ** 2
        self.cell_variance = table.variance / units
        self.rounding = (1 - 1 / units) / 12

    def cost(self) -> Cost:
        return Cost(rho=self._guarantee.rho, deltas=(("numerical", self.config.delta),))

    def public(self) -> Mapping[str, object]:
        return {
            **head(self.kind, self.config, self.guarantee),
            "size": self.config.size,
            "release": self.config.release,
            "accounting": "pure",
            "sketch_version": SKETCH_VERSION,
            "domain": domain_hash(self.config.domain or ()),
            "counter": {
                "kind": "tree",
                "horizon": self.tree.horizon,
                "levels": self.tree.levels,
                "radix": self.tree.radix,
                "scale": str(self.scale),
                "table_version": LAPLACE_TABLE_VERSION,
            },
        }

    def domain(self) -> Sequence[bytes]:
        return self._labels

    def meet_key(self, state: State, key: int, tags: Tags, labels: Sequence[bytes]) -> None:
        """Keeps the domain's tags: every release needs noise for all of them."""
        if not isinstance(state, SketchState):
            raise TypeError(f"state = {type(state).__name__}: must come from this mechanism's init")
        state.declare(key, tags)

    def _feed(self, state: SketchState, key: int, levels: Sequence[int], items: SketchBatch) -> None:
        own = state.domain_of(key).only(items)
        if len(own.counts):
            feed(state.opened(key, levels), own)

    def _release(self, state: SketchState, key: int, t: int, over: Sketch | None, noise: Noise) -> None:
        domain = state.domain_of(key)
        sketch = Sketch(self.config.size) if over is None else over
        places, parts = largest_parts(sketch, domain, self._labels, noise.at(t, domain.tags))
        labels = [self._labels[place] for place in places.tolist()]
        state.show(key, self.tree.over(t), zip(labels, parts.tolist(), strict=True))

    def _published(self, sums: Sequence[int]) -> NDArray[np.int64]:
        """Rounded once, after all cells were added up."""
        return whole(np.array(sums, dtype=np.int64), self.config.size)


def make_misra_gries(config: MisraGriesConfig, unit: str = "event") -> MisraGries:
    """The mechanism that `config.release` names."""
    return PureMisraGries(config, unit) if config.pure else MisraGries(config, unit)
