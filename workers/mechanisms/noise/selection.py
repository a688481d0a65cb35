"""Exact exponential-mechanism picks: equal in law to the top k of counts + Gumbel noise.

Of n candidates with integer counts, pick i with probability proportional to exp(count_i / b),
remove it, pick again, k times ("peeling"). That is the order of the k largest of
count_i + Gumbel(b) (Durfee, Rogers 2019, Lemma 4.2; "Gumbel-max").
Float Gumbel noise would distort the probability of rare picks, differently on every machine.

    b           `scale`: one pick is (2 Dinf / b)-bounded range; (Dinf / b)-bounded range where
                neighbours move all counts one way
    g           gap: largest remaining count minus the count
    w_g         round(2^256 exp(-g / b)), the weight of one candidate
    BOTTOM      an additional candidate with a given count, which ends the picks

Candidates are grouped by count, so a pick costs time in the number of distinct counts near the
largest, not in n. A word u picks the candidate that holds floor(u W / 2^128), W the weight of all
remaining candidates. When the largest remaining weight falls under 2^192, weights are recomputed
from the largest remaining count.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from workers.arrays.types import Longs
from workers.mechanisms.accounting import float_up
from workers.mechanisms.noise.inversion import TABLE_CONTEXT, WORD_BITS
from workers.runtime.frozen import Frozen, memoized

# Incremented whenever the same words would give other picks; part of every mechanism id.
SELECTION_VERSION = 1

_WEIGHT_BITS = 256
_LEAST_BITS = 192
_GUARD_BITS = 80  # a product of six powers loses fewer than 12 of them
_TABLE_BITS = _WEIGHT_BITS + _GUARD_BITS
_DIGIT_BITS = 8
_DIGIT_VALUES = 1 << _DIGIT_BITS

Word = tuple[int, int]  # (upper, lower) halves


def gumbel_top_k(
    counts: Longs, scale: Fraction, k: int, words: Sequence[Word]
) -> Longs:
    """Return the indices of min(k, n) picks, in law the top k of counts + Gumbel(scale).

    They are in the order picked, descending by that sum. `words` has one word for each pick.
    """
    # None: there is no BOTTOM to pick.
    return peel(counts, None, scale, k, words)[0]


def selection_tv(candidates: int, picks: int) -> float:
    """Bound the picks' total variation distance from the law (BOTTOM is a candidate).

    Splitting the word moves a pick's probability by at most 2^-128; rounded or omitted weights, by
    less than 2^-150.
    """
    # 1 more, for the weights.
    return float_up(Fraction(picks * (candidates + 1), 1 << WORD_BITS))


def peel(
    counts: Longs, bottom: int | None, scale: Fraction, k: int, words: Sequence[Word]
) -> tuple[Longs, bool]:
    """Pick as `gumbel_top_k` does, with a candidate BOTTOM of count `bottom` that ends the picks.

    Equal in law to listing candidates by count + Gumbel(scale) down to the k-th or to bottom +
    Gumbel(scale). Returns the picks before BOTTOM, and whether BOTTOM was picked.
    """
    n = len(counts)
    if bottom is not None:
        counts = np.append(counts, np.int64(bottom))
    limit = min(k, len(counts))
    if len(words) < limit:
        raise ValueError(f"words = {len(words)}: one for each of {limit} picks")
    if scale <= 0:
        raise ValueError(f"scale = {scale}: must be above 0")
    picks: list[int] = []
    if limit > 0:
        groups = _Groups(counts, limit, scale)
        for word in words[:limit]:
            picked = groups.pick(word)
            if picked == n:  # BOTTOM
                return np.array(picks, dtype=np.int64), True
            picks.append(picked)
    return np.array(picks, dtype=np.int64), False


class _Groups:
    """The candidates of up to k picks, grouped by count, largest first."""

    def __init__(self, counts: Longs, k: int, scale: Fraction) -> None:
        """Group the candidates, which are places of `counts`; at most `k` picks follow."""
        self._powers = _powers(scale)
        # The k-th largest count bounds the largest remaining one from below, whatever was picked.
        # So candidates further than `largest_gap` below it never have a weight. (There are none
        # where that is below int64.)
        rows = np.arange(len(counts))
        if len(counts) > k:
            least = kth_largest(counts, k) - self._powers.largest_gap
            if least > np.iinfo(np.int64).min:
                rows = np.flatnonzero(counts >= least)
        ordered = rows[np.argsort(-counts[rows], kind="stable")]
        values = counts[ordered]
        starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
        # By group: its count, its candidates, the positions of picked ones among these
        # (ascending), and how many remain.
        self._counts = values[starts].tolist()
        self._members = np.split(ordered, starts[1:])
        self._picked: list[list[int]] = [[] for _ in self._members]
        self._left = [len(members) for members in self._members]
        # The first group with candidates.
        self._top = 0
        self._weigh()

    def _weigh(self) -> None:
        """Compute the weight of a candidate of each group, from the largest remaining count.

        `_weights` ends with the last group that has a weight above 0; `_total` is W.
        """
        top = self._counts[self._top]
        self._weights = [0] * self._top
        for value in self._counts[self._top :]:
            weight = self._powers.weight(top - value)
            if weight == 0:
                break
            self._weights.append(weight)
        # Groups of weight 0 are left out.
        groups = zip(self._weights, self._left, strict=False)
        self._total = sum(weight * left for weight, left in groups)

    def pick(self, word: Word) -> int:
        """Remove and return the candidate that a word picks."""
        # u W / 2^128, where all remaining candidates lie side by side, each as wide as its weight.
        offset = (((word[0] << 64) | word[1]) * self._total) >> WORD_BITS
        group = self._top
        while offset >= (mass := self._weights[group] * self._left[group]):
            offset -= mass
            group += 1
        # The candidate has `place` remaining members of its group before it, and `before` picked
        # ones: the i-th picked one has picked[i] - i remaining members before it.
        place = offset // self._weights[group]
        picked = self._picked[group]
        before = bisect_right(range(len(picked)), place, key=lambda i: picked[i] - i)
        picked.insert(before, place + before)
        candidate = int(self._members[group][place + before])
        self._left[group] -= 1
        self._total -= self._weights[group]
        while self._top < len(self._left) and not self._left[self._top]:
            self._top += 1
        # Weights that have become small lose precision, and are computed again.
        top = self._top
        weights = self._weights
        if top < len(self._left) and (
            top >= len(weights) or weights[top] >> _LEAST_BITS == 0
        ):
            self._weigh()
        return candidate


def kth_largest(counts: Longs, k: int) -> int:
    """Return the k-th largest count, 1 <= k <= n, by counting how often each occurs.

    numpy's partition is ten times slower on equal counts (measured).
    """
    highest = int(counts.max())
    lowest = int(counts.min())
    # Bins only for counts near the lowest, where most are: about 2 n of them.
    window = 2 * len(counts)
    if highest - lowest > window:
        large = counts > lowest + window
        above = int(np.count_nonzero(large))
        if above >= k:
            return int(np.partition(counts[large], above - k)[above - k])
        counts = counts[~large]
        k = k - above
        highest = lowest + window
    # By i, the sums are how many counts are at least highest - i: find the first i with k.
    return highest - int(np.searchsorted(np.cumsum(np.bincount(highest - counts)), k))


class _Powers(Frozen):
    """The weights w_g = round(2^256 exp(-g / scale)), as a product of powers, one per 8 bits of g.

    A digit is 8 bits of g, the lowest first; its table has the power of each value.
    """

    def __init__(self, scale: Fraction) -> None:
        """Compute the tables, up to the largest gap that has a weight above 0."""
        # ln(2^257) = 178.2: weights of larger gaps round to 0.
        self.largest_gap = math.ceil(179 * scale)
        digits = -(-self.largest_gap.bit_length() // _DIGIT_BITS)
        # The last digit's table stops at the largest gap, which halves the time (measured).
        self._tables = tuple(
            _table(
                scale,
                digit,
                min(_DIGIT_VALUES, (self.largest_gap >> (_DIGIT_BITS * digit)) + 1),
            )
            for digit in range(digits)
        )

    def weight(self, gap: int) -> int:
        """Return w_g, the weight of a candidate with this gap."""
        if gap > self.largest_gap:
            return 0
        # exp(-g / b) is the product of a power for each digit of the gap. It is multiplied by
        # 2^336, rather than 2^256, so that it is rounded once, at the end.
        value = 1 << _TABLE_BITS
        digit = 0
        while gap:
            value = (
                value * self._tables[digit][gap & (_DIGIT_VALUES - 1)] >> _TABLE_BITS
            )
            gap >>= _DIGIT_BITS
            digit += 1
        return (value + (1 << (_GUARD_BITS - 1))) >> _GUARD_BITS


def _table(scale: Fraction, digit: int, values: int) -> tuple[int, ...]:
    """Return 2^336 exp(-j 2^(8 digit) / scale) for j = 0..values-1, rounded down."""
    powers = []
    with localcontext(TABLE_CONTEXT) as context:
        # Its 90 digits are for words of 128 bits; 2^336 alone has 102.
        context.prec *= 2
        for j in range(values):
            n, d = (Fraction(j << (_DIGIT_BITS * digit)) / scale).as_integer_ratio()
            powers.append(int((1 << _TABLE_BITS) * (Decimal(-n) / d).exp()))
    return tuple(powers)


@memoized(64)
def _powers(scale: Fraction) -> _Powers:
    return _Powers(scale)
