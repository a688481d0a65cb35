"""Continual heavy hitters in bounded memory: a Misra-Gries sketch for every cell of the r-ary tree.

A tick's items go into the open cell of every level. A complete cell is released once, with noise
and a threshold; the release at t adds the noisy counts of the cells named by t's base-r digits (as
in MetaAlgo). A stream key holds at most size * levels counters and (r - 1) * size released counts a
level. Shown items are sorted by label: the order in which a sketch holds its keys would leak. A
cell that no digit ever names (the last of its parent, or beyond the horizon) is not kept.

    Symbol      Here
    k           `size`, counters of a sketch
    r, L        `radix`, `levels`: digits of the horizon
    m           max_items * max_count, items that one event adds to the stream; Dinf is max_count
    Z, eta      N_Z(0, sigma^2): noise of one counter, and of all counters of a cell together
    e, c_max    counters that may show in only one of two neighbours, and their largest count

"pmg" (Algorithm 2 with integer Gaussian noise, sketches fed item by item): noisy count = c + Z +
eta. By Lemma 2 one more item moves one counter by one, or all; that is Z or eta shifted by one. An
event of m items is m such steps. On the keys that stay in the sketch through all steps the
difference is a * 1 + b with |a| + |b|_1 <= m, so rho = m^2 / (2 sigma^2) a cell. A step changes at
most two keys, and no counter by more than one: e = 4 m, c_max = m. (A hybrid: one neighbour, on the
other's keys, with c' + a on those that did not stay; it is e tails away in total variation, and
a * 1 + b away from the other neighbour. For m = 1 it is the proof of Lemma 6.)

"merge" (Section 7, a tick's exact histogram is merged into the sketches): noisy count = c + Z. Up
to k counters move by at most Dinf, however many items an event has, so rho = k Dinf^2 / (2 sigma^2)
a cell, e = k (2 k where Dinf > 1), c_max = Dinf. Better once m^2 is well above k.

"pamg" (PAMG, Algorithm 4 of the paper): as "merge", with sketches that stage 1 has fed with the set
of items of every event. Its counters differ by one, all in one direction (`SparseGaussianLaw`).

"pmg_laplace" (Algorithm 2 as printed): the same with discrete Laplace noise of scale L m / epsilon.
A cell is (epsilon / L)-DP but for its part of delta (`releases.PmgLaw`), and epsilons add up, which
for the few levels of a tree is far less noise than zCDP of Gaussian noise. Take it where epsilon is
given and events have few items.

In "pmg" and "merge", an event lies in one cell of each of L levels: rho and delta_discovery are L
times those of a cell, composed adaptively.

"pure" (Algorithm 3, over a declared domain): a complete cell's counters are lowered by the sum of
all over k + 1 (gamma); every label of the domain gets noise, and the k largest are shown. Empty
cells are released too: the absence of items must not show. Values are multiplied by k + 1 to stay
integers (`reduced`, with discrete Laplace noise of `scale` b), and rounded once when published.
Cost: one more item changes these by 2k - 1 in l1, and so an event by m (2k - 1) in each of its L
cells: epsilon = L m (2k - 1) / b, by basic composition, with no delta except for the samplers'
distance. A cell is m (2k - 1) / b-DP, or (m (2k - 1) / b)^2 / 2 in zCDP, so rho = epsilon^2 /
(2 L). The best base minimises (r - 1) L^3: a cell's variance grows with L^2, where zCDP has L.
Error: with n items of the domain up to t, a count is too low by up to n / (k+1) before noise, and
most are by nearly that: the sum of a cell's counters is n_cell - (k+1) a, with a items that each
took one from every counter, so n_cell / (k+1) = sum / (k+1) + a (Lemma 1 of Section 6).
Correction to Section 6: gamma moves by +1/(k+1), not -1/(k+1), when one counter grows, so the l1
sensitivity is at most (2k-1)/(k+1), to which the noise is calibrated, not to 2.

Source: Lebeda and Tetek, Algorithms 1 to 4, Lemmas 2 and 6, Sections 6 and 7, and Lemma 4 of
Section 8 for events of several items; Cardoso and Rogers, Algorithm 7; Bun and Steinke 2016,
Proposition 1.4, for rho. Gaussian noise in Algorithm 2, and its group form, are derived here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import msgspec
import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Longs, Tags
from workers.mechanisms.about import About, Bound, Data, Figure, SketchBytes
from workers.mechanisms.accounting import (
    PrivacyCost,
    check_sampler_delta,
    float_up,
    sampler_delta,
)
from workers.mechanisms.bounds import normal_bound, subset_bound
from workers.mechanisms.budget import Budgeted, split
from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.counters.tree import Tree, best_radix
from workers.mechanisms.curves import DigitCurve, blocks_figure
from workers.mechanisms.ledger import Parts, rows_by_key, tick_rows
from workers.mechanisms.mechanism import (
    Items,
    Mechanism,
    Noise,
    State,
    expect_type,
    short_hash,
)
from workers.mechanisms.misra_gries.releases import (
    PureLaw,
    SparseGaussianLaw,
    gshm_threshold,
)
from workers.mechanisms.misra_gries.sketch import (
    SKETCH_VERSION,
    Sketch,
    SketchBatch,
    SortedTags,
    batch,
    feed,
    reduced,
    rounded,
)
from workers.mechanisms.misra_gries.state import SketchState
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import gaussian, rounded_gaussian
from workers.mechanisms.noise.inversion import InversionTable, round_up_to_grid
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.selection import kth_largest
from workers.mechanisms.one_shot.algorithms import (
    INWARD,
    gaussian_for,
    laplace_quantile,
)
from workers.mechanisms.one_shot.bounds import sketch_error
from workers.mechanisms.one_shot.sketches import Size, price_sketch


def shown_above(
    labels: Texts, noisy: Longs, threshold: int
) -> tuple[list[bytes], Longs]:
    """Return the labels and noisy counts of the items above a threshold, ascending by label."""
    kept = np.flatnonzero(noisy > threshold)
    names = list(labels.take(kept))
    order = sorted(range(len(names)), key=names.__getitem__)
    return [names[i] for i in order], noisy[kept[order]]


def largest_parts(
    sketch: Sketch, domain: SortedTags, labels: Sequence[bytes], noise: Longs
) -> tuple[Rows, Longs]:
    """Release a sketch with pure epsilon: Algorithm 3, the k largest noisy counts of a domain.

    Args:
        sketch: of size k, fed, not merged.
        domain, labels: the d declared labels, whose places in `labels` the domain's tags give.
        noise: (d,), of every label, in units of 1 / (k + 1); becomes the noisy counts.

    Returns the places of the k largest in `labels`, and their noisy counts in the same units.
    Raises ValueError if the sketch has an undeclared item.
    """
    rows, is_declared = domain.places(sketch.tags)
    if not is_declared.all():
        raise ValueError("domain: the sketch holds an item that is not declared")
    noise[rows] += reduced(sketch)
    best = _largest(noise, labels, min(sketch.size, len(labels)))
    return best, noise[best]


def _largest(counts: Longs, labels: Sequence[bytes], k: int) -> Rows:
    """Return the places of the k largest counts, in no order; ties go to the lower label."""
    # Without labels there is no k-th largest count.
    if not k:
        return np.empty(0, dtype=np.int64)
    least = kth_largest(counts, k)
    larger = np.flatnonzero(counts > least)
    equal = np.flatnonzero(counts == least)
    if len(larger) + len(equal) > k:
        first = sorted(equal.tolist(), key=labels.__getitem__)[: k - len(larger)]
        equal = np.array(first, dtype=np.int64)
    return np.concatenate((larger, equal))


# The first byte of noise cells, which no other mechanism has.
USE = 0x40
# Sizes of sketches in a plan's comparison.
_COMPARED_SIZE = 1_000
_COMPARED_PURE_SIZE = 100
# Bytes, of Python objects as in CPython 3.11.
_TAG = 16
_COUNT = 8
_BYTES_OBJECT = 33
_INT_OBJECT = 32
_DICT_ENTRY = 100  # of a dict at its lowest load: index, hash, two pointers
_DECLARED = 40  # tag of a declared label, in both orders, and its position


class MisraGriesConfig(HistogramConfig, frozen=True, kw_only=True, tag="misra_gries"):
    """Frequent items in bounded memory; `size` counters per sketch."""

    about = About(
        order_in_tables=40,
        family="running",
        text_in_plan="running counts of frequent labels, too low by up to a share of all",
        noise_is_on="a count that all its blocks show; what the sketch leaves out comes on top",
        text_on_dashboard="Only frequent items are kept.",
        threshold_rule="block",
        counters="tree",
        needs_end=True,
        may_be_pure=True,
    )
    # Only "pure" has a declared domain (`lists_labels`).
    decides_domain = "release"

    size: Size
    # "pmg": best for events of few items. "merge": best once (max_items * max_count)^2 is well
    # above size. "pure": pure epsilon, over a declared domain. "pamg": stage 1 counts in sketches.
    # "pmg_laplace": "pmg" as printed, whose epsilons add up: least noise for events of few items.
    release: Literal["pmg", "pmg_laplace", "merge", "pure", "pamg"] = "pmg"
    domain: Domain | None = None
    counter: Literal["tree"] = "tree"

    @classmethod
    def lists_labels(cls, values: Mapping[str, object]) -> bool:
        return values.get("release") == "pure"

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield settings to compare with `other`; "pure" too if it has labels and epsilon."""
        yield {"size": _COMPARED_SIZE}
        if other.declared and other.epsilon is not None:
            size = min(_COMPARED_PURE_SIZE, len(other.declared))
            yield {"size": size, "release": "pure"}

    @property
    def pure(self) -> bool:
        return self.release == "pure"

    @property
    def pays(self) -> str:
        """Return when it is better than plain counters, as a plan says after its name."""
        if self.pure:
            return "pays where epsilon must be a pure one"
        return "pays where there is no memory for every item"

    @property
    def source_counters(self) -> int:
        return self.size if self.release == "pamg" else 0

    def complaints(self) -> Iterator[str]:
        """Yield what does not go with the chosen `release`."""
        yield from super().complaints()
        if self.release == "pmg_laplace" and self.epsilon is None:
            yield 'release = "pmg_laplace": needs epsilon, not rho'
        if self.release == "pamg" and self.max_count > 1:
            yield f'max_count = {self.max_count}: 1 with release = "pamg", which counts sets of items'
        if self.pure and self.domain is None:
            yield 'domain, domain_file or buckets is missing: release = "pure" needs one of them'
        if not self.pure and self.domain is not None:
            yield f'{self.domain_from} is set: release = "{self.release}" has none'
        if self.pure and self.epsilon is None:
            yield 'release = "pure": needs epsilon, not rho'


class CellNoise:
    """Noise of the cell of the tree that is completed at a tick.

    A counter's noise is drawn from its tag; what a sketch's counters share, from the stream key's.
    """

    def __init__(self, stream: NoiseStream, table: InversionTable, tree: Tree) -> None:
        self._stream = stream
        self._table = table
        self._tree = tree

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of these tags in the highest cell that ends at t."""
        level = self._tree.top_level(t)
        # Cells of a level are numbered from 0. `USE` sets their noise apart from a counter's, which
        # has the same levels.
        number = t // self._tree.radix**level - 1
        return self._table.values(self._stream, (USE << 56 | level, number), tags)


class MisraGries(Budgeted):
    """Running counts of the frequent items.

    Guarantee: as `Budgeted`, also on streams that react to released values. Error: with n items in
    the ticks up to t, an item's count is too low by at most n / (size + 1) plus, for each of the
    `cells(t)` cells, `threshold` or its noise, and too high by no more than the noise.
    """

    configs = (MisraGriesConfig,)
    config: MisraGriesConfig
    # Set by `_calibrate`: the variance of the noise on a count of one cell.
    cell_variance: float
    # The variance that rounding adds to published counts.
    rounding = 0.0
    # The version of the tables that a counter's noise is drawn from.
    _table_version = gaussian.TABLE_VERSION
    # Whether all counters of a cell share a noise value (eta), beside their own (Z).
    _has_eta = False

    @classmethod
    def make(cls, config: HistogramConfig, unit: str) -> "MisraGries":
        """Build the class for the setting `release`."""
        config = expect_type(MisraGriesConfig, config)
        kinds: dict[str, type[MisraGries]] = {
            "pamg": PrivacyAwareMisraGries,
            "pmg_laplace": LaplaceMisraGries,
            "pure": PureMisraGries,
        }
        return kinds.get(config.release, MisraGries)(config, unit)

    def __init__(self, config: MisraGriesConfig, unit: str = "event") -> None:
        # Skip `Budgeted`, which splits the budget: each `_calibrate` has its own split.
        Mechanism.__init__(self, config, unit)
        adds_epsilons = config.release in ("pure", "pmg_laplace")
        best = best_radix(config.ticks, power=3 if adds_epsilons else 2)
        self.tree = Tree(config.ticks, config.radix or best)
        self._calibrate()

    def _calibrate(self) -> None:
        """Choose the noise that the budget pays for, and set cost and threshold.

        "pmg" or "merge": the module has the formulas and their symbols.
        """
        config = self.config
        levels = self.tree.levels
        size = config.size
        self._has_eta = config.release == "pmg"
        noises = 1 + self._has_eta
        # Of one cell: squared l2 sensitivity, e (`exposed`), c_max (`largest`), and how many noise
        # values are added to a different count for a neighbouring input (`concerned`).
        if self._has_eta:
            # c_max, which here is m of the module.
            largest = config.max_items * config.max_count
            squared = largest**2
            exposed = 4 * largest
            # Eta, Z of m counters, and Z of those exposed in either neighbour.
            concerned = largest + 1 + 2 * exposed
        else:
            largest = config.max_count
            squared = size * largest**2
            exposed = size if largest == 1 else 2 * size
            concerned = size + exposed
        self._cost = split(config, discovers=True)
        # Squared l2 sensitivity of all L cells of an event together.
        total = levels * squared
        table = gaussian_for(total, self._cost.rho)
        self.sigma_squared = table.sigma_squared
        self._table: InversionTable = table
        rho = float_up(total / (2 * self.sigma_squared))
        self._set_cost(rho, table.tv, times=levels * concerned)
        self.cell_variance = float(self.sigma_squared) * noises
        # For one exposed counter. The factors near 1 exceed the errors of the floats here.
        delta = self.delta_discovery / (levels * exposed) * INWARD
        # x with P(noise >= x) <= delta: exact where cheap, else from the sub-Gaussian bound.
        quantile = gaussian.upper_quantile(self.sigma_squared, noises, delta)
        if quantile is None:
            variance = self.cell_variance * (1 + 1e-12)
            quantile = math.ceil(
                math.sqrt(-2 * math.log(delta) * variance) * (1 + 1e-12)
            )
        # Shown is a noisy count above it: of c_max, only if its noise is at least `quantile`.
        self._threshold = largest + quantile - 1

    @property
    def counters_max(self) -> int:
        return self.config.size * self.tree.levels

    def _parameters(self) -> Mapping[str, object]:
        """Return what the mechanism's id depends on, beside what all mechanisms have."""
        tree = self.tree
        shape = {"horizon": tree.horizon, "levels": tree.levels, "radix": tree.radix}
        return {
            "size": self.config.size,
            "release": self.config.release,
            **({"accounting": "pure"} if self._cost.pure else {}),
            "sketch_version": SKETCH_VERSION,
            **self._further(),
            "counter": {"kind": "tree", **shape, **self._law()},
        }

    def _law(self) -> dict[str, object]:
        """Return the parameters of the noise on a counter."""
        return {
            "sigma_squared": str(self.sigma_squared),
            "table_version": self._table_version,
        }

    def _further(self) -> dict[str, object]:
        """Return parameters that only this kind of release has."""
        discovery = {"delta": repr(self.delta_discovery), "threshold": self._threshold}
        return {"discovery": discovery}

    def blocks(self) -> DigitCurve:
        of_blocks = [self.cell_variance] * self.tree.levels
        return DigitCurve(self.tree.radix, of_blocks, rounding=self.rounding)

    def most_shown(self) -> int | None:
        if not self._domain:
            return None
        return min(len(self._domain), self.config.size * self.blocks().most_blocks)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield the share of items that sketches leave out, and the blocks of the tick `worst`."""
        share = 1 / (self.config.size + 1)
        meaning = "of all items up to t, most that a count lacks before noise"
        yield Figure("undercount_share", share, meaning)
        yield blocks_figure(self.blocks(), worst)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the error of every count; an unpublished item counts as 0.

        A count may be too low by what sketches leave out and, in each block, by the threshold and
        the block's noise. It may be too high by the noise of the blocks that show the item, which
        may be any subset.
        """
        size = self.config.size
        releases = self._ticks(data)
        used = self.blocks().used_blocks(releases)
        values = min(data.items, used * size) * releases
        error = self._error(data.weight / (size + 1), used, values, beta)
        source = "Lebeda, Tetek: Section 7; Rogers: Theorem 7 in each block"
        if self._has_eta:
            source = "Lebeda, Tetek: Theorem 8 in each block"
        text = f"error of every count, over {releases:,} ticks"
        assumes = (
            f"at most {data.items:,} labels and {data.weight:,} counts in an epoch"
        )
        return (Bound("counts", text, assumes, beta, error, source),)

    def _error(self, lost: float, used: int, values: float, beta: float) -> float:
        """Bound the errors of `values` sums of `used` blocks, where sketches leave out `lost`."""
        # A block's noise is Z, and eta if there is one.
        variance = (1 + self._has_eta) * float(self.sigma_squared)
        # Only "pure", which has bounds of its own, is without a threshold.
        low = lost + used * (self._threshold or 0)
        low += normal_bound(used * variance, values, beta)
        return max(low, subset_bound(variance, used, values, beta))

    def sketch_bytes(self, label: int) -> SketchBytes:
        """Return the memory for labels of `label` bytes: counters, released counts and a domain."""
        counter = _TAG + _COUNT + 8 + label  # 8 for the label's end offset
        shown = _DICT_ENTRY + _BYTES_OBJECT + label + _INT_OBJECT
        on_disk = _TAG + _COUNT + 2 + label  # 2 for its length
        counters = self.counters_max
        released = self.blocks().most_blocks * self.config.size
        declared = len(self._domain)  # with release = "pure"
        note = f"at most {counters:,} counters and {released:,} released counts a stream key, whatever the number of items"
        if declared:
            note += f"; and the tags of {declared:,} labels"
        return SketchBytes(
            counter=counter,
            shown=shown,
            counter_on_disk=on_disk,
            counters=counters,
            key_least=declared * _DECLARED,
            key_most=counters * counter + released * shown + declared * _DECLARED,
            key_on_disk=on_disk * counters
            + (_COUNT + 2 + label) * released
            + _TAG * declared,
            note=note,
        )

    def sd(self, t: int) -> float:
        """Return the sd of a count that every cell of t shows; fewer cells give less."""
        self._check(t)
        return math.sqrt(self.tree.cells(t) * self.cell_variance + self.rounding)

    def init(self) -> SketchState:
        return SketchState(self.config.size)

    def noise(self, stream: NoiseStream) -> Noise:
        return CellNoise(stream, self._table, self.tree)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Items]:
        """Feed a tick to the open sketches, release the cell that it completes, and sum up."""
        self._check(t)
        state = expect_type(SketchState, state)
        levels = self.tree.open_levels(t)
        top_level = self.tree.top_level(t)
        tick = tick_rows(contributions)
        for key, rows in rows_by_key(tick.keys):
            tags = tick.tags.take(rows, axis=0)
            # Labels are those of the whole tick, and `rows` are indices of them.
            self._feed(
                state, key, levels, batch(tags, tick.labels, tick.counts[rows], rows)
            )
        for key in range(len(state.key_tags)):
            self._release(state, key, t, state.close_cells(key, top_level), noise)
        keys: list[int] = []
        labels: list[bytes] = []
        counts: list[int] = []
        for key, total in state.shown():
            keys += [key] * len(total)
            ascending = sorted(total)
            labels += ascending
            counts += map(total.__getitem__, ascending)
        index = np.array(keys, dtype=np.int32)
        published = self._published(counts)
        return state, Items(index, labels, published, self.sd(t), self._threshold)

    def _feed(
        self, state: SketchState, key: int, levels: Sequence[int], items: SketchBatch
    ) -> None:
        """Feed a tick's items of a stream key to its open sketches."""
        sketches = state.open_sketches(key, levels)
        # Algorithm 1, one occurrence after another, for which the noise of "pmg" is proved.
        if self._has_eta:
            feed(sketches, items)
            return
        # The noise of "merge" and "pamg" is proved for ticks that are merged in.
        for sketch in sketches:
            sketch.add(items)

    def _release(
        self,
        state: SketchState,
        key: int,
        t: int,
        complete: Sketch | None,
        noise: Noise,
    ) -> None:
        """Show the counters of the cell completed at t that are above the threshold.

        `complete` is its sketch; None: it had no items.
        """
        # Only "pure", which has a `_release` of its own, is without a threshold.
        if complete is None or not len(complete.counts) or self._threshold is None:
            return
        noisy = complete.counts + noise.at(t, complete.tags)
        if self._has_eta:
            noisy += noise.at(t, state.key_tags[key : key + 1])
        labels, counts = shown_above(complete.labels, noisy, self._threshold)
        state.show(
            key, self.tree.top_level(t), zip(labels, counts.tolist(), strict=True)
        )

    def _published(self, sums: Sequence[int]) -> Longs:
        """Return the counts to publish from sums over the cells of t."""
        return np.array(sums, dtype=np.int64)


class PrivacyAwareMisraGries(MisraGries):
    """Running counts of the frequent items, from sketches of sets that stage 1 has fed.

    Guarantee and error: as `MisraGries`. `misra_gries_tick` releases each tick by itself.
    """

    _table_version = rounded_gaussian.TABLE_VERSION

    def _calibrate(self) -> None:
        """Choose the noise for counters that differ by one, in one direction, in every cell."""
        config = self.config
        size = config.size
        levels = self.tree.levels
        self._cost = split(config, discovers=True)
        least = levels * size / (2 * Fraction(self._cost.rho))
        self.sigma_squared = round_up_to_grid(least, "sigma_squared")
        # Rounded down by `INWARD`, as the division may have rounded up.
        delta_of_cell = self.delta_discovery / levels * INWARD
        threshold = gshm_threshold(size, self.sigma_squared, delta_of_cell)
        law = SparseGaussianLaw(size, self.sigma_squared, threshold)
        rho = float_up(levels * size / (2 * self.sigma_squared))
        self._set_cost(rho, law.table.tv, times=levels * law.concerned)
        self._threshold = law.threshold
        self._table = law.table
        self.cell_variance = law.variance


class LaplaceMisraGries(MisraGries):
    """Running counts of the frequent items, by Algorithm 2 as printed in every cell.

    Guarantee: (epsilon, delta)-DP, where epsilons and deltas of the L cells of an event add up (see
    `PmgLaw`). Error: as `MisraGries`.
    """

    law = "laplace"
    _has_eta = True

    def _calibrate(self) -> None:
        """Choose the Laplace noise that an L-th of epsilon pays for, and set the cost."""
        self.algorithm, self._cost = price_sketch(
            self.config, "pmg", self.config.size, self.tree.levels
        )
        self._table = self.algorithm.table
        self._threshold = self.algorithm.threshold
        self.cell_variance = self.algorithm.law.variance

    def _law(self) -> dict[str, object]:
        return self.algorithm.law.public()

    def _error(self, lost: float, used: int, values: float, beta: float) -> float:
        """Bound the errors of `values` sums of `used` blocks, where sketches leave out `lost`."""
        return lost + sketch_error(self.algorithm, used, values, beta)


class PureMisraGries(MisraGries):
    """Running counts of the frequent items of a domain.

    Guarantee: epsilon-DP, up to the samplers' distance (delta), for the content of one event, over
    all ticks of an epoch together, on streams that may react to released values. Error: see the
    module; too high by no more than the noise, and half a count for rounding.
    """

    law = "laplace"

    def _calibrate(self) -> None:
        """Choose the Laplace noise that an L-th of epsilon pays for, and set the cost."""
        config = self.config
        levels = self.tree.levels
        size = config.size
        # Never None: the settings require it.
        epsilon = config.epsilon or 0.0
        together = config.max_items * config.max_count
        # l1 sensitivity of one of an event's L cells, in units of 1 / (k + 1).
        sensitivity = together * (2 * size - 1)
        needed = levels * sensitivity / Fraction(epsilon)
        if needed > laplace.LARGEST_SCALE:
            raise ValueError(
                f'release = "pure": {levels} levels * max_items * max_count * (2 * size - 1) / epsilon = {float(needed):,.0f}: '
                f"at most {laplace.LARGEST_SCALE:,}, with a smaller size or a larger epsilon"
            )
        law = PureLaw(size, together, Fraction(epsilon) / levels)
        table = law.table
        self.scale = law.scale
        self._table = table
        epsilon_of_cell = sensitivity / self.scale
        rho = float_up(levels * epsilon_of_cell**2 / 2)
        # How many labels one event may change: those with a counter in either neighbour's sketch.
        # The sampler's distance from its law is charged for each.
        changed = levels * min(law.concerned, len(self._domain))
        numerical = sampler_delta(epsilon, changed, table.tv)
        # All of delta is for that.
        check_sampler_delta(config.delta, epsilon, numerical, share=1.0)
        failures = (("numerical", config.delta),)
        self._cost = PrivacyCost(
            rho, epsilon, config.delta, failures=failures, pure=True
        )
        # Of counts: noise is in units of 1 / (k + 1), whose multiples are rounded to integers.
        squared_units = (size + 1) ** 2
        self.cell_variance = table.variance / squared_units
        self.rounding = (1 - 1 / squared_units) / 12

    def _law(self) -> dict[str, object]:
        return {"scale": str(self.scale), "table_version": laplace.TABLE_VERSION}

    def _further(self) -> dict[str, object]:
        return {"domain": short_hash(msgspec.json.encode(self.config.domain))}

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the error of every count of a declared domain.

        Each tick releases one cell, with a noise value for each label. At most k labels have a
        count above 0 before noise, so a label that is not shown ranks below one with count 0, and a
        block lacks at most two noise values. The sum of blocks is rounded once.
        """
        size = self.config.size
        releases = self._ticks(data)
        used = self.blocks().used_blocks(releases)
        lost = data.weight / (size + 1)
        values = len(self._domain) * releases
        # With probability 1 - beta no noise value is further from 0 than this: each tail beyond it
        # has a probability of at most beta / values / 2.
        largest = laplace_quantile(self.scale, beta / values / 2) - 1
        text = f"error of every count, over {releases:,} ticks"
        assumes = f"at most {data.weight:,} counts of the domain in an epoch"
        error = lost + used * 2 * largest / (size + 1) + 0.5
        source = "Lebeda, Tetek: Section 6 in each block"
        return (Bound("counts", text, assumes, beta, error, source),)

    def prepare_key(
        self, state: State, key: int, tags: Tags, labels: Sequence[bytes]
    ) -> None:
        """Keep the domain's tags: every release needs noise for all of them."""
        expect_type(SketchState, state).declare(key, tags)

    def _feed(
        self, state: SketchState, key: int, levels: Sequence[int], items: SketchBatch
    ) -> None:
        """Feed the items of the tick that the domain lists."""
        declared = items.within(state.domain_of(key))
        if len(declared.counts):
            feed(state.open_sketches(key, levels), declared)

    def _release(
        self,
        state: SketchState,
        key: int,
        t: int,
        complete: Sketch | None,
        noise: Noise,
    ) -> None:
        """Show the k largest noisy counts of the whole domain, also of an empty cell.

        They are in units of 1 / (k + 1), until `_published` rounds their sums.
        """
        domain = state.domain_of(key)
        sketch = Sketch(self.config.size) if complete is None else complete
        places, counts = largest_parts(
            sketch, domain, self._domain, noise.at(t, domain.tags)
        )
        labels = [self._domain[place] for place in places.tolist()]
        state.show(
            key, self.tree.top_level(t), zip(labels, counts.tolist(), strict=True)
        )

    def _published(self, sums: Sequence[int]) -> Longs:
        return rounded(np.array(sums, dtype=np.int64), self.config.size)
