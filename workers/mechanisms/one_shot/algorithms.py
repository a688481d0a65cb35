"""One-shot releases: calibration from (rho, delta), and selection from exact histograms.

A release shows noisy counts of a cell: of one tick, or of a block of ticks, the exact counts of all
items (`Cell`). Neighbours: the content of one event emptied, or the reverse. It changes at most D0
counts of one stream key, by at most Dinf each, in one direction.

    name               source                  cost (rho, delta)         shown iff
    known_gauss        000 Alg. 4              D0 Dinf^2/(2 s2)          always
    known_gumbel       000 Alg. 5              k Dinf^2/(8 b^2) +
                                               min(D0,k) Dinf^2/(2 s2)   among k picks
    positive_laplace   004 Alg. 1, Thm 7       D0 Dinf^2/(2 b^2), delta  h + Z > m
    positive_gauss     004 Alg. 1, Thm 7       D0 Dinf^2/(2 s2), delta   h + Z > m
    unk_gauss          000 Alg. 9, 004 Alg. 2  D0 Dinf^2/(2 s2), delta   top kbar: h + Z > H+m+Z'
    limit_dom_laplace  002 Lemma 3.2, 6.2      D0 Dinf^2/(2 b^2), delta  top kbar: h + Z > H+m+Z'
    limit_dom          002 Alg. 1, 000 Alg. 6  as known_gumbel; k + 1    top kbar: before BOTTOM
                                               picks if kbar is private

    h       `Cell.counts`; a stream key's counts are a histogram of their own
    h_(i)   i-th largest count of a stream key, 0 where there are fewer items; ties by tag: in an
            order that depends on the data, one event could change more than D0 of the kbar largest
    k       the most items picked
    kbar    the number of candidates: the items of largest count, h_(1)..h_(kbar)
    H       h_(kbar+1), the largest count that is no candidate's
    Z, Z'   noise on a count and on a bar, of variance s2, or of scale b
    m       `threshold`
    picks   one after another, each with a probability in proportion to exp(h / b): as if by largest
            h + Gumbel noise of scale b (`selection`)
    BOTTOM  a candidate that is no item, and ends the picks. Its count is above H, by so much that
            an item that is a candidate for one neighbour only hardly ever comes before it
    tv      total variation distance of noise, as it is drawn, from its law
    place   (level, block) of the release, its `address`; (0, t) for the contributions of one tick
    noise   cells, which name words of noise: hi = (use << 56) | (level << 40) | pick, lo = block

Differences from the papers: (a) counts of picks cost min(D0, k), not k: no more of them can change.
(b) Thresholds are exact integer quantiles, delta / min(D0, kbar) per item: at most that many items
are among the kbar largest for one neighbour only, with ties broken by tag (the other neighbour has
equally many such items, paired under the same noise, docs/decisions/0009); 000 Alg. 6 drops ties
with H instead, and then pays kbar. (c) Where H differs between neighbours, at least one changed
item is not among the kbar largest of both, so the threshold's noise takes its place and D0 stays
D0. (d) Dinf = 1 in the papers, scaled here: counts and H move by at most Dinf, in one direction.

Quantiles: every `*_quantile` function returns the smallest integer x that provably has
P(N >= x) <= delta, N a sample or the difference of two independent ones, rounded to the private
side. A count from one event, at most Dinf, is shown iff Dinf + N > m, for m = Dinf + x - 1 with
probability at most delta.

    N                              P(N >= x)
    Gaussian N_Z(0, s2)            summed
    difference of two Gaussians    P(n) = exp(-n^2/(4 s2)) E_(n mod 2) / Z^2, summed: with m = the
                                   other combination, n and m have one parity and
                                   exp(-(a^2 + b^2)/(2 s2)) = exp(-(n^2 + m^2)/(4 s2))
    discrete Laplace               q^x / (1 + q), q = exp(-1/b)
    difference of two Laplace      ((1-q)/(1+q))^2 q^x ((x + 1 + c)/(1-q) + q/(1-q)^2), x >= 0,
                                   c = 2 q^2/(1-q^2)
    logistic: of two Gumbel(b)     1 / (1 + exp(x/b))

The continuous forms are 004 Theorems 7 and 8; 000's tau ln(1/delta) for Gumbel is twice as long.

Papers by number (docs/mechanisms.md, Papers): 000 Cardoso, Rogers; 002 Durfee, Rogers; 004 Rogers.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs, Tags
from workers.mechanisms.about import Figure, pick_figures
from workers.mechanisms.accounting import float_up, least_integer
from workers.mechanisms.ledger import rows_by_key
from workers.mechanisms.misra_gries.releases import Law
from workers.mechanisms.misra_gries.sketch import (
    SKETCH_VERSION,
    Sketch,
    SketchBatch,
    batch,
    reduced,
    rounded,
)
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import gaussian, selection
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, round_up_scale
from workers.mechanisms.noise.gaussian import IntegerGaussian, round_up_sigma_squared
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.frozen import Frozen, read_only

Place = tuple[int, int]
Table = IntegerGaussian | DiscreteLaplace

# What noise is for: part of its cell.
USE_ITEMS = 0x10
USE_THRESHOLD = 0x11
USE_PICKS = 0x12
USE_KBAR = 0x13
USE_SHARED = 0x14


@dataclass(frozen=True, slots=True)
class Cell:
    """The exact histograms behind one release, a row per item. Sensitive.

    `keys` are indices into `key_tags`; with an unknown domain all counts are positive.
    """

    tags: Tags
    keys: Codes
    counts: Longs
    key_tags: Tags

    def __repr__(self) -> str:
        return f"Cell({len(self.counts)} rows)"

    def largest(self, rows: Rows, k: int) -> Rows:
        """Return the k rows of largest count among `rows`, or all, largest first, ties by tag."""
        if len(rows) > k:
            # Sort only rows that may be among them: those above the k-th largest count, and of
            # those equal to it the ones of smallest tag (by its upper half, so perhaps some more;
            # the whole tag decides below).
            counts = self.counts[rows]
            least = selection.kth_largest(counts, k)
            larger = rows[counts > least]
            equal = rows[counts == least]
            if len(larger) + len(equal) > k:
                upper = self.tags[equal, 0]
                missing = k - len(larger)
                equal = equal[upper <= np.partition(upper, missing - 1)[missing - 1]]
            rows = np.concatenate((larger, equal))
        tags = self.tags.take(rows, axis=0)
        return rows[np.lexsort((tags[:, 1], tags[:, 0], -self.counts[rows]))[:k]]


class OneShotNoise:
    """The noise of one-shot releases: a function of place, use, and item or stream key.

    Places and uses are the module's. `table` None: there is only noise of picks.
    """

    def __init__(self, stream: NoiseStream, table: InversionTable | None) -> None:
        self._stream = stream
        self._table = table

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise on counts in the release of tick t, as every `Noise` does."""
        return self.items((0, t), tags)

    def items(self, address: Place, tags: Tags) -> Longs:
        """Return the noise on the counts of items in a release."""
        return self._values(USE_ITEMS, address, tags)

    def threshold(self, address: Place, key_tag: Tags) -> int:
        """Return Z', the noise on a stream key's threshold in a release."""
        return int(self._values(USE_THRESHOLD, address, key_tag.reshape(1, 2))[0])

    def shared(self, address: Place, key_tag: Tags) -> int:
        """Return eta, the noise that all counters of a stream key's sketch have together."""
        return int(self._values(USE_SHARED, address, key_tag.reshape(1, 2))[0])

    def _values(self, use: int, address: Place, tags: Tags) -> Longs:
        """Return the noise of rows, by their tags, at an address, for one use of it."""
        if self._table is None:
            raise ValueError(
                "table = None: this mechanism shows no counts, so they have no noise"
            )
        return self._table.values(self._stream, _cell(use, address), tags)

    def picks(
        self, use: int, address: Place, key_tag: Tags, k: int
    ) -> list[tuple[int, int]]:
        """Return k words for a stream key's picks; word j is that of the cell with `pick` = j."""
        tags = np.tile(key_tag.astype(np.uint64), (k, 1))
        # A word is AES(tag XOR cell); the pick fills the cell's zero low bits.
        tags[:, 0] ^= np.arange(k, dtype=np.uint64)
        return [
            (high, low)
            for high, low in self._stream.words(tags, _cell(use, address)).tolist()
        ]


def _cell(use: int, address: Place) -> tuple[int, int]:
    """Return the noise cell of a use at a place: see the module."""
    level, block = address
    return (use << 56) | (level << 40), block


# Far above the rounding error of these sums, far below what is visible in a threshold.
_TAIL_OUTWARD = 1 + 1e-9
# Beyond this u, exp(-u) is below every delta the settings allow by a factor of 1e-200.
_NEGLIGIBLE = 600.0


def quantile(table: Table, delta: float, *, difference: bool) -> int:
    """Return the least x with P(N >= x) <= delta, N noise of a table, or a `difference` of two."""
    if isinstance(table, DiscreteLaplace):
        return laplace_quantile(table.scale, delta, difference=difference)
    return gaussian_quantile(table.sigma_squared, delta, difference=difference)


def laplace_quantile(scale: Fraction, delta: float, *, difference: bool = False) -> int:
    """Return the least x with P(N >= x) <= delta, N discrete Laplace noise.

    `difference`: N is the difference of two such values.
    """
    q = math.exp(-1 / float(scale))
    one_less_q = -math.expm1(-1 / float(scale))
    c = 2 * q * q / (one_less_q * (1 + q))
    front = (one_less_q / (1 + q)) ** 2

    def is_enough(x: int) -> bool:
        """Return whether P(N >= x) <= delta, by the module's table of laws.

        q and c are as there, `one_less_q` is 1 - q, and `front` is ((1-q)/(1+q))^2.
        """
        tail = q**x / (1 + q)
        if difference:
            tail = front * q**x * ((x + 1 + c) / one_less_q + q / one_less_q**2)
        return tail * _TAIL_OUTWARD <= delta

    return least_integer(is_enough)


def logistic_quantile(scale: Fraction, delta: float) -> int:
    """Return the smallest x >= 0 with P(G - G' >= x) <= delta, both independent Gumbel(scale)."""
    if delta >= 0.5:
        return 0
    return max(0, math.ceil(float(scale) * math.log(1 / delta - 1) * _TAIL_OUTWARD))


def gaussian_quantile(
    sigma_squared: Fraction, delta: float, *, difference: bool = False
) -> int:
    """Return the least n with P(N >= n) <= delta, N discrete Gaussian noise.

    `difference`: N is the difference of two such values.
    """
    # A law of exp(-n^2 / spread), as in the module's table.
    spread = (4 if difference else 2) * float(sigma_squared)
    largest = math.ceil(math.sqrt(_NEGLIGIBLE * spread)) + 2
    n = np.arange(largest + 1, dtype=np.float64)
    # The unnormalized law for n >= 0; it is symmetric.
    weights = np.exp(-n * n / spread)
    if difference:
        # E of the module, the sum over all integers m of n's parity.
        weights[::2] *= 2 * weights[::2].sum() - 1
        weights[1::2] *= 2 * weights[1::2].sum()
    # P(N >= n), by n.
    tails = np.cumsum(weights[::-1])[::-1] / (2 * weights.sum() - weights[0])
    # exp(-540) is far more than the mass beyond the largest n, which is below the last term, about
    # exp(-`_NEGLIGIBLE`), times a geometric series.
    allowed = np.flatnonzero(
        tails * _TAIL_OUTWARD + math.exp(-_NEGLIGIBLE + 60) <= delta
    )
    return int(allowed[0]) if len(allowed) else largest + 1


Name = Literal[
    "known_gauss",
    "known_gumbel",
    "positive_laplace",
    "positive_gauss",
    "unk_gauss",
    "limit_dom_laplace",
    "limit_dom",
    "pmg",
    "gshm",
    "pure",
]
# Over a declared domain; by picks; among the kbar largest; with Laplace noise; of sketches.
KNOWN: tuple[Name, ...] = ("known_gauss", "known_gumbel", "pure")
PICKING: tuple[Name, ...] = ("known_gumbel", "limit_dom")
LIMITED: tuple[Name, ...] = ("unk_gauss", "limit_dom_laplace", "limit_dom")
LAPLACE: tuple[Name, ...] = ("positive_laplace", "limit_dom_laplace", "pmg", "pure")
SKETCHES: tuple[Name, ...] = ("pmg", "gshm", "pure")
# Their epsilon needs no conversion from zCDP.
IN_EPSILON: tuple[Name, ...] = ("pmg", "pure")
# Counts are separate: what one item shows does not depend on others.
PER_ITEM: tuple[Name, ...] = ("known_gauss", "positive_gauss", "positive_laplace")
# Private-side margins of a float division: more of a scale, less of delta.
_OUTWARD = Fraction(1 + 1e-12)
INWARD = 1 - 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters besides the budget; `max_items` is D0, `max_count` Dinf.

    `k`: most items shown (`PICKING`). `kbar`: number of candidates (`LIMITED`); if `private`, its
    maximum, chosen from k..kbar by the exponential mechanism (`limit_dom`). `domain`: its size
    (`KNOWN`). `releases`: most releases with parts of one item, at most Dinf together: 1 for an
    event, several for a user where counts are separate (`PER_ITEM`).
    """

    max_items: int
    max_count: int
    k: int = 0
    kbar: int = 0
    private: bool = False
    domain: int = 0
    releases: int = 1


class Noisy(Frozen):
    """Noise on every count; shows all, those above a threshold, or the top kbar above a bar.

    One release costs at most `rho` and `delta`.
    """

    def __init__(self, name: Name, p: Parameters, rho: float, delta: float) -> None:
        self._name = name
        # D0 Dinf^2: for both laws rho is this over 2 s2, or 2 b^2.
        sensitivity_squared = p.max_items * p.max_count**2
        self.table: Table
        # `spread` is b^2, or s2.
        if name in LAPLACE:
            scale = scale_for(Fraction(sensitivity_squared, 2), rho)
            self.table = laplace.discrete_laplace(scale)
            spread = scale**2
            self.sd = math.sqrt(self.table.variance)
        else:
            self.table = gaussian_for(sensitivity_squared, rho)
            spread = self.table.sigma_squared
            self.sd = math.sqrt(spread)
        # What the noise costs after it was rounded up.
        self.rho = min(rho, float_up(sensitivity_squared / (2 * spread)))
        self.delta = 0.0 if name == "known_gauss" else delta
        # None: every item is a candidate.
        self._kbar = p.kbar if name in LIMITED else None
        # Noise on the counts that an event changes, and on the bar.
        noise_values = p.releases * (p.max_items + (self._kbar is not None))
        self.tv = float_up(noise_values * Fraction(self.table.tv))
        # m; None: all items are shown.
        self.threshold: int | None = None
        if name != "known_gauss":
            items = p.max_items if self._kbar is None else min(p.max_items, self._kbar)
            delta_item = delta / items * INWARD
            self.threshold = self._least_threshold(p.max_count, p.releases, delta_item)

    def _least_threshold(self, most_count: int, releases: int, delta: float) -> int:
        """Return m: with it, parts of an item are shown with probability at most delta in all.

        The item's count, at most `most_count`, may be split over up to `releases` releases. If n of
        them have a part, none is above most_count - n + 1, and m must be at least that + x - 1 (see
        the module), with x the quantile of delta / n. So m is the largest of these over
        n = 1..releases: n is taken in groups n..2 n - 1, each with the quantile of its last.
        """
        threshold = 0
        n = 1
        while n <= releases:
            last = min(2 * n - 1, releases)
            each = quantile(self.table, delta / last, difference=self._kbar is not None)
            threshold = max(threshold, most_count - n + each)
            n = last + 1
        return threshold

    def public(self) -> dict[str, object]:
        """Return the parameters that determine a release from counts and noise, as JSON."""
        law = laplace if isinstance(self.table, DiscreteLaplace) else gaussian
        return {
            "name": self._name,
            "noise": repr(self.table),
            "table_version": law.TABLE_VERSION,
            "threshold": self.threshold,
            "kbar": self._kbar,
        }

    def release(
        self, cell: Cell, noise: OneShotNoise, address: Place
    ) -> tuple[Rows, Longs]:
        """Return the rows that a release shows, ascending, and their noisy counts."""
        # One rule for all items of all stream keys.
        if self.threshold is None or self._kbar is None:
            noisy = cell.counts + noise.items(address, cell.tags)
            if self.threshold is None:
                return np.arange(len(noisy)), noisy
            rows = np.flatnonzero(noisy > self.threshold)
            return rows, noisy[rows]
        # A bar for each stream key: H + m + Z'.
        shown: list[Rows] = []
        for key, rows in rows_by_key(cell.keys):
            largest = cell.largest(rows, self._kbar + 1)
            top, next_count = top_candidates(cell, largest, self._kbar)
            noise_of_bar = noise.threshold(address, cell.key_tags[key])
            bar = next_count + self.threshold + noise_of_bar
            shown.append(top[_noisy(cell, top, noise, address) > bar])
        return _shown(cell, shown, noise, address)


class Picking(Frozen):
    """Shows at most k items, picked with half of rho; the other half pays for their counts.

    One release costs at most `rho` and `delta`.
    """

    def __init__(self, name: Name, p: Parameters, rho: float, delta: float) -> None:
        self._name = name
        self._parameters = p
        # The choice of a private kbar is one more.
        picks = p.k + p.private
        # None, as picks decide what is shown.
        self.threshold: int | None = None
        # An event changes at most this many of the shown counts.
        changed_counts = min(p.max_items, p.k)
        sensitivity_squared = changed_counts * p.max_count**2
        self.table = gaussian_for(sensitivity_squared, rho / 2)
        sigma_squared = self.table.sigma_squared
        self.sd = math.sqrt(sigma_squared)
        # Picks cost this over b^2, the module's k Dinf^2 / (8 b^2).
        of_picks = Fraction(picks * p.max_count**2, 8)
        self.scale = scale_for(of_picks, rho / 2)
        of_counts = sensitivity_squared / (2 * sigma_squared)
        self.rho = min(rho, float_up(of_counts + of_picks / self.scale**2))
        self.delta = delta if name == "limit_dom" else 0.0
        self._bottom = Bottom(p, self.scale, delta) if name == "limit_dom" else None
        # How far BOTTOM lies above H; 0: there is none.
        self.bar = self._bottom.height if self._bottom else 0
        candidates = p.kbar + 1 if self._bottom else p.domain
        of_selection = Fraction(selection.selection_tv(candidates, picks))
        self.tv = float_up(of_selection + changed_counts * Fraction(self.table.tv))

    def public(self) -> dict[str, object]:
        """Return the parameters that determine a release from counts and noise, as JSON."""
        return {
            "name": self._name,
            "noise": repr(self.table),
            "table_version": gaussian.TABLE_VERSION,
            "k": self._parameters.k,
            "scale": str(self.scale),
            "selection_version": selection.SELECTION_VERSION,
            "bottom": self._bottom.public() if self._bottom else None,
        }

    def release(
        self, cell: Cell, noise: OneShotNoise, address: Place
    ) -> tuple[Rows, Longs]:
        """Return the rows that a release picks, ascending, and their noisy counts."""
        picked = list[Rows]()
        k = self._parameters.k
        for key, rows in rows_by_key(cell.keys):
            if self._bottom:
                # Whether BOTTOM ended the picks does not matter here.
                picked.append(self._bottom.pick(cell, rows, key, k, noise, address)[0])
            else:
                key_tag = cell.key_tags[key]
                words = noise.picks(USE_PICKS, address, key_tag, min(k, len(rows)))
                counts = cell.counts[rows]
                picks = selection.gumbel_top_k(counts, self.scale, k, words)
                picked.append(rows[picks])
        return _shown(cell, picked, noise, address)


class Bottom(Frozen):
    """LimitDom's picks: labels among the kbar largest, in order, until BOTTOM or the k-th.

    A private kbar is chosen from k..kbar, with noise, for each stream key and release. BOTTOM, a
    candidate that is no item, lies above H = h_(kbar+1), and ends the picks.

    Guarantee: k picks cost k Dinf^2 / (8 b^2), b = `scale`, and one more where kbar is private,
    with `delta` per release: an item that is among the kbar largest for one neighbour only has a
    count of at most H + Dinf, so it precedes BOTTOM, at H + Dinf + x, with probability at most
    1 / (1 + exp(x/b)) <= delta / min(D0, kbar). Source: 002 Alg. 1 and Lemma 5.5; kbar private:
    Lemma 3.1, the candidate kbar has the cost H + Dinf + x(kbar).
    """

    def __init__(self, p: Parameters, scale: Fraction, delta: float) -> None:
        self._parameters = p
        self.scale = scale
        self._delta = delta
        # By kbar, how far BOTTOM's count is above H: Dinf + x. For k..kbar if kbar is private, else
        # for kbar alone. The difference of two Gumbel values is logistic. An item's exceeds
        # BOTTOM's by x with a probability of delta / n, for the n items that may be candidates for
        # only one of two neighbours.
        least_kbar = p.k if p.private else p.kbar
        above = [
            p.max_count
            + logistic_quantile(scale, delta / min(p.max_items, kbar) * INWARD)
            for kbar in range(least_kbar, p.kbar + 1)
        ]
        self._above = read_only(np.array(above, dtype=np.int64))

    @property
    def height(self) -> int:
        """How far BOTTOM lies above h_(kbar+1), for the largest kbar."""
        return int(self._above[-1])

    def public(self) -> dict[str, object]:
        """Return the parameters that determine picks from counts and noise, as JSON."""
        return {
            "kbar": self._parameters.kbar,
            "private": self._parameters.private,
            "above": self.height,
            "delta": repr(self._delta),
        }

    def pick(
        self,
        cell: Cell,
        rows: Rows,
        key: int,
        k: int,
        noise: OneShotNoise,
        address: Place,
    ) -> tuple[Rows, bool]:
        """Pick up to k of the rows of stream key `key`, for the release at place `address`.

        Return them in the order of the picks, and whether BOTTOM ended these.
        """
        p = self._parameters
        top = cell.largest(rows, p.kbar + 1)
        kbar = p.kbar
        above = self.height
        if p.private:
            words = noise.picks(USE_KBAR, address, cell.key_tags[key], 1)
            steps_above_k = self._choose_kbar(cell.counts[top], words)
            kbar = p.k + steps_above_k
            above = int(self._above[steps_above_k])
        candidates, next_count = top_candidates(cell, top, kbar)
        # A word for each pick; all candidates and BOTTOM may be picked.
        words = noise.picks(
            USE_PICKS, address, cell.key_tags[key], min(k, len(candidates) + 1)
        )
        counts = cell.counts[candidates]
        bottom = next_count + above
        picks, ended = selection.peel(counts, bottom, self.scale, k, words)
        return candidates[picks], ended

    def _choose_kbar(self, counts: Longs, words: list[tuple[int, int]]) -> int:
        """Choose kbar from k..`kbar` by the exponential mechanism; return how far above k.

        It prefers a kbar with which BOTTOM's count is low. `counts` are a stream key's `kbar` + 1
        largest, descending; `words` the randomness, one word.
        """
        # By kbar from k on: H = h_(kbar+1), 0 where there are fewer items. BOTTOM is `_above` it.
        next_counts = np.zeros(len(self._above), dtype=np.int64)
        beyond = counts[self._parameters.k :]
        next_counts[: len(beyond)] = beyond
        cost = next_counts + self._above
        return int(selection.gumbel_top_k(-cost, self.scale, 1, words)[0])


class Sketched(Frozen):
    """A Misra-Gries sketch of a stream key's counts, released by a law of `releases`.

    A law has the noise, its variance, and the threshold above which counters are shown (None: the
    largest are shown).

    A sketch has `size` counters, for the most frequent items; one is too low by up to
    n / (size + 1), of n counts, before noise. "pmg" and "pure" feed the counts occurrence by
    occurrence (Algorithm 1), "gshm" merges them as an exact histogram (Section 7). "pmg" and "gshm"
    show counters above a threshold; "pure" shows the `size` largest noisy counts of a declared
    domain, each rounded once. The release "pamg" is "gshm" here, of counts that stage 1 took from
    sketches. Source: Lebeda, Tetek.
    """

    def __init__(self, name: Name, size: int, law: Law) -> None:
        self._name = name
        self.size = size
        self.law = law
        self.table = law.table
        self.threshold = law.threshold
        self.sd = math.sqrt(law.variance)

    def public(self) -> dict[str, object]:
        """Return the parameters that determine a release from counts and noise, as JSON."""
        return {
            "name": self._name,
            "size": self.size,
            "sketch_version": SKETCH_VERSION,
            **self.law.public(),
        }

    def release(
        self, cell: Cell, noise: OneShotNoise, address: Place
    ) -> tuple[Rows, Longs]:
        """Return the rows that a release shows, ascending, and their noisy counts.

        Each stream key has a sketch, whose counters get the law's noise. Those above the law's
        threshold are shown; a law without one ("pure") shows the `size` largest of the domain. Its
        counts are whole in units of 1 / (size + 1), and rounded at the end.
        """
        # By row of the cell; 0 where there is no counter. `noisy_cell` shares this array, so it has
        # the values that are written below.
        noisy = np.zeros(len(cell.counts), dtype=np.int64)
        noisy_cell = Cell(cell.tags, cell.keys, noisy, cell.key_tags)
        shown: list[Rows] = []
        for key, rows in rows_by_key(cell.keys):
            counted, counts = self._counters(cell, rows)
            noisy[counted] = counts
            # "pure": every label of the domain gets noise, and the largest are shown.
            if self.threshold is None:
                noisy[rows] += noise.items(address, cell.tags.take(rows, axis=0))
                shown.append(noisy_cell.largest(rows, self.size))
                continue
            noisy[counted] += noise.items(address, cell.tags.take(counted, axis=0))
            if self.law.shared:
                noisy[counted] += noise.shared(address, cell.key_tags[key])
            shown.append(counted[noisy[counted] > self.threshold])
        rows = np.sort(np.concatenate(shown)) if shown else np.empty(0, dtype=np.int64)
        if self.threshold is None:
            return rows, rounded(noisy[rows], self.size)
        return rows, noisy[rows]

    def _counters(self, cell: Cell, rows: Rows) -> tuple[Rows, Longs]:
        """Return those of a stream key's rows that have a counter in its sketch, and the counters.

        "pure": in units of 1 / (size + 1).
        """
        rows = rows[cell.counts[rows] > 0]
        sketch, items = self.sketch(cell, rows)
        # All tags of the sketch are found: it was fed with these items alone.
        positions, _ = items.tags.places(sketch.tags)
        counts = reduced(sketch) if self._name == "pure" else sketch.counts
        return rows[positions], counts

    def sketch(self, cell: Cell, rows: Rows) -> tuple[Sketch, SketchBatch]:
        """Return the sketch of rows of one stream key, all above zero, and what it was fed."""
        tags = cell.tags.take(rows, axis=0)
        # Items are told apart by tags alone.
        no_labels = Texts.from_lengths(b"", np.zeros(len(rows), dtype=np.uint16))
        items = batch(tags, no_labels, cell.counts[rows])
        sketch = Sketch(self.size)
        if self._name == "gshm":
            sketch.add(items)
        else:
            sketch.feed(items)
        return sketch, items


Algorithm: TypeAlias = Noisy | Picking | Sketched
"""One release costs `rho` and `delta`; `tv` is the samplers' distance from their laws. `release`
returns the shown rows of the cell, ascending, and their noisy counts. (Sketches: `price_sketch`.)
"""


def figures_of(algorithm: Algorithm) -> Iterator[Figure]:
    """Yield a plan's figures of picks, and of the height of BOTTOM, if there is one."""
    if isinstance(algorithm, Picking):
        yield from pick_figures(float(algorithm.scale))
        yield from bar_figure(algorithm.bar)


def bar_figure(height: int) -> Iterator[Figure]:
    if height:
        meaning = "BOTTOM lies this far above the (kbar + 1)-th largest count"
        yield Figure("bar_above_the_rest", float(height), meaning)


def make_algorithm(
    name: Name, p: Parameters, rho: float, delta: float
) -> Noisy | Picking:
    """Return the algorithm for (rho, delta) a release; ValueError if the tables lack such noise."""
    return (
        Picking(name, p, rho, delta) if name in PICKING else Noisy(name, p, rho, delta)
    )


def top_candidates(cell: Cell, largest: Rows, kbar: int) -> tuple[Rows, int]:
    """Return the first kbar of the largest rows, and H: the count of the next, 0 without one."""
    next_count = int(cell.counts[largest[kbar]]) if len(largest) > kbar else 0
    return largest[:kbar], next_count


def scale_for(numerator: Fraction, rho: float) -> Fraction:
    """Return the scale b of noise or picks that cost `numerator` / b^2: at most rho.

    It is on the grid of scales, the smallest such one or the next.
    """
    wanted = numerator / Fraction(rho)
    scale = round_up_scale(Fraction(math.sqrt(float(wanted))))
    # The root in floats may be a little small.
    while scale * scale < wanted:
        scale = round_up_scale(scale * _OUTWARD)
    return scale


def gaussian_for(sensitivity_squared: int, rho: float) -> IntegerGaussian:
    """Return the Gaussian noise that costs at most rho for a squared l2 sensitivity."""
    sigma_squared = round_up_sigma_squared(sensitivity_squared / (2 * Fraction(rho)))
    return gaussian.integer_gaussian(sigma_squared)


def _noisy(cell: Cell, rows: Rows, noise: OneShotNoise, address: Place) -> Longs:
    """Return the noisy counts of rows in the release at place `address`."""
    return cell.counts[rows] + noise.items(address, cell.tags.take(rows, axis=0))


def _shown(
    cell: Cell, of_keys: list[Rows], noise: OneShotNoise, address: Place
) -> tuple[Rows, Longs]:
    """Return the shown rows of all stream keys, ascending, and their noisy counts.

    `of_keys` has the shown rows of each stream key.
    """
    rows = np.sort(np.concatenate(of_keys)) if of_keys else np.empty(0, dtype=np.int64)
    return rows, _noisy(cell, rows, noise, address)
