"""Snapshots: a tick's release as the JSON that consumers read. Equal releases give equal bytes.

Items come largest first, ties by label. To sort them, an item is one number made of its stream key,
count and *rank*: the label's place by name among all labels shown in the epoch. A row is an item's
place in the ledger; a series is what one output topic gets: a window, or counts of an epoch so far.

A snapshot too long for one message is split into pages by the JSON bytes of one list: `items` (with
their `sums`), `labels`, `value` or `answers`. All pages repeat the other fields, and a continued
answer its query; `join_pages(split_fields(fields)) == fields`.

Bound: labels and stream keys have at most 1,024 bytes, and JSON makes at most six characters of a
byte. So a page without its items has fewer than 9,000 bytes, an item fewer than 6,200, and edges
and quantiles add fewer than 110,000, an item's sum fewer than 110: a page has room for more than a
hundred items.

Windows. For each window a snapshot states the standard deviation of an item's published count at
tick t minus the one `ticks` before. It follows from the settings and t alone, so it costs no
privacy. Two snapshots share noise, which cancels: error bars that assume independence would be
three times too long over one tick (`lifted`), less over longer windows. The same holds for the
change of a sum and of the count of all items.

An epoch younger than a window follows another one, of T ticks: what was counted in the window is
count(t), plus the last count of the epoch before, minus its count `ticks` - t ticks before its end.
The noises of two epochs are independent, so the variances add up. `previous_id` names the epoch
before. Where that did not publish so far back, `ticks` is `tick`: before an epoch's start every
count is 0 without noise.

Numbers. Quantiles and their intervals are post-processing of the released counts, the public edges
and the public sd of the noise: they cost no privacy, and every reader can recompute them. They are
sums, products and square roots of doubles in a fixed order, rounded at the end: the same bytes on
every machine.

    c_j, C_k    released count of bucket j = 0..n; sum of c_0 .. c_k, the count below edge k
    N, sd       sum of all c_j; standard deviation of each one's noise, independent between buckets
    G(x)        count below x, minus q N: the q-quantile is where it crosses 0

Value. G at the edges is made monotone (least squares) and clipped to -q N .. (1 - q) N; between the
two edges where it crosses 0 it is linear, as if the bucket were filled evenly. A fit crosses 0
where the sums of the fitted values are least, and its value there is the largest mean that ends on
the left, the smallest that begins on the right (the max-min form of isotonic regression).

Interval. It spans all x at which G(x) = 0 is not rejected at 95 %: |G| <= 1.96 sqrt(V). G is linear
within a bucket, so at the fraction f of it V = (1 - f)^2 V_k + 2 f (1 - f) V_(k,k+1) + f^2 V_(k+1),
with the variances and the covariance of G at the edges k and k + 1 beside it. With counts c + z, z
normal, this is exact at the x that the same computation finds in the counts without noise. The
interval is open (None) below where the quantile may lie under the first edge, above where it may
lie beyond the last.

    counts      V_k = sd^2 ((k + 1) (1 - q)^2 + (n - k) q^2), as noise is independent; for V_(k,k+1)
                bucket k + 1 has the weights -q and 1 - q
    ranks       with for = "quantiles" C_k has noise of covariance K sd^2 / K_b, as
                `mechanisms.counters.ranks` has them: sd is that of the noisiest bucket. Rounding is
                counted in proportion

Sums. n and D = 2 S - R n are released with independent noise of sd s and d, S in steps above `from`
and R steps wide (`mechanisms.config.sums`). With m the middle of the range and h half a step, sum =
m n + h D, computed in whole numbers and rounded once; mean = m + h D / n.

    theta    D / n of the exact n >= 1 and D: in -R..R; the mean is m + h theta

The noise of D - theta n has the variance d^2 + theta^2 s^2. So |D - theta n| <= 1.96 sqrt(d^2 +
theta^2 s^2) holds with probability 95 % for the true theta, whatever n is: the interval is all such
theta (Fieller), clipped to -R..R, to which the true theta belongs, and widened to a digit. With a =
n^2 - 1.96^2 s^2 > 0 and n > 0 they lie between the roots of a theta^2 - 2 n D theta + D^2 - 1.96^2
d^2; elsewhere the interval is -R..R, and there is no mean. For the change of a sum and of its count
over a window, the same holds with s and d of these changes; larger s and d only widen the interval.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from workers.arrays import quantiles
from workers.arrays import texts as kernels
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Floats, Longs
from workers.arrays.words import WORD
from workers.mechanisms.accounting import Guarantee
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.ranks import ranks_of
from workers.mechanisms.ledger import Ledger, with_capacity
from workers.mechanisms.mechanism import Answers, Items, Mechanism, Release
from workers.runtime.frozen import Frozen, memoized, read_only
from workers.runtime.sizes import VALUE_BYTES, split_by_size

# With fewer new labels than one for so many known ones, ranks are found by bisection.
_FULL_SORT_RATIO = 16


class LabelCache:
    """Labels of shown rows as text, and their ranks: places in the order of names.

    It only grows until the epoch ends: an item once shown stays shown.
    """

    def __init__(self) -> None:
        self.names: list[str] = []  # by rank
        self.rank: Longs = np.full(1024, -1)  # by row; -1: not known
        self._by_rank: Longs = np.empty(0, dtype=np.int64)  # the row of each rank
        # The JSON with which each item begins, ["label", up to `_end`; by row, its place there, and
        # its length: at most 6 * 1,024, and four for the bracket, quotes and comma.
        self._text: Bytes = np.zeros(1 << 14, dtype=np.uint8)
        self._begins: Longs = np.zeros(1024, dtype=np.int64)
        self._lengths: NDArray[np.int16] = np.zeros(1024, dtype=np.int16)
        self._end = 0

    def add_labels(self, columns: Ledger, rows: Longs) -> None:
        """Learn the labels of `rows` that are not known yet from the ledger `columns`."""
        # Make room up to the highest row. A rank of -1: not known.
        size = int(rows.max(initial=-1)) + 1
        if size > len(self.rank):
            more = max(size, 2 * len(self.rank)) - len(self.rank)
            self.rank = np.concatenate((self.rank, np.full(more, -1)))
            self._begins = with_capacity(self._begins, len(self.rank))
            self._lengths = with_capacity(self._lengths, len(self.rank))
        new = rows[self.rank[rows] < 0]
        if len(new):
            labels = [columns.label(row).decode() for row in new.tolist()]
            self._write(new, [b"[%s," % orjson.dumps(label) for label in labels])
            self._update_ranks(new, labels)

    def _update_ranks(self, new: Longs, labels: list[str]) -> None:
        """Rank the `labels` of `new` rows among all: insert them if they are few, else sort all.

        Keeps `names` sorted, and `_by_rank` in the same order.
        """
        if _FULL_SORT_RATIO * len(new) < len(self._by_rank):
            order = sorted(range(len(labels)), key=labels.__getitem__)
            places = [bisect_left(self.names, labels[i]) for i in order]
            self._by_rank = np.insert(self._by_rank, places, new[order])
            # As `np.insert` does it for all at once: each insertion moves later places by one.
            for inserted, (place, i) in enumerate(zip(places, order, strict=True)):
                self.names.insert(place + inserted, labels[i])
        else:
            names = self.names + labels
            order = sorted(range(len(names)), key=names.__getitem__)
            self._by_rank = np.concatenate((self._by_rank, new))[order]
            self.names = [names[i] for i in order]
        self.rank[self._by_rank] = np.arange(len(self._by_rank))

    def _write(self, rows: Longs, texts: list[bytes]) -> None:
        """Append `texts`, the JSON of the labels of `rows`."""
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        begin = self._end
        self._end = self._end + int(lengths.sum())
        # The kernel that copies them reads whole words.
        self._text = with_capacity(self._text, self._end + WORD)
        self._text[begin : self._end] = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._begins[rows] = begin + np.cumsum(lengths) - lengths
        self._lengths[rows] = lengths

    def items(
        self, columns: Ledger, rows: Longs, counts: Longs, keys: int
    ) -> list[bytes] | None:
        """Return the JSON list of sorted items of every stream key, from `rows` and `counts` (n,).

        `keys` is how many stream keys there are. An item is sorted as one 64-bit number: from the
        top its key, the largest count minus its own, and its rank. Return None if they do not fit.
        """
        rows = readonly_contiguous(rows)
        counts = readonly_contiguous(counts)
        key_of = readonly_contiguous(columns.keys)
        numbers = np.empty(len(rows), dtype=np.int64)
        # If some row is new, the kernel returns NO_RANK instead of a shift: learn all new labels,
        # then start over.
        shift = kernels.NO_RANK
        while shift == kernels.NO_RANK:
            ranks = readonly_contiguous(self.rank)
            lengths = readonly_contiguous(self._lengths)
            shift, rank_bits, largest, size = kernels.items_as_numbers(
                rows, counts, key_of, ranks, lengths, keys, numbers
            )
            if shift == kernels.NO_RANK:
                self.add_labels(columns, rows)
        if shift == kernels.TOO_LONG:
            return None
        numbers.sort()
        # Where each key's list ends in `out`, which has room for labels (`size`), counts, brackets,
        # and a word, as the kernel writes whole words.
        ends = np.empty(keys, dtype=np.int64)
        out = np.empty(
            size + kernels.ITEM_BYTES * len(rows) + 2 * keys + WORD, dtype=np.uint8
        )
        text = readonly_contiguous(self._text)
        begins = readonly_contiguous(self._begins)
        by_rank = readonly_contiguous(self._by_rank)
        numbers = readonly_contiguous(numbers)
        packing = shift, rank_bits, largest
        kernels.numbers_as_json(
            text, begins, lengths, by_rank, numbers, packing, ends, out
        )
        return [
            out[start:end].tobytes() for start, end in pairwise((0, *ends.tolist()))
        ]


NORMAL_95 = 1.959963984540054
# What a snapshot says it is for, where its noise is that of ranks.
RANKS = "quantiles"
# What the window of a snapshot says of its counts, where they are of different users.
OF_USERS = "users"


class Numeric(Frozen):
    """What snapshots of numbers in buckets add to their counts: edges and quantiles."""

    def __init__(
        self, buckets: Buckets, quantiles: Sequence[float], *, ranks: bool = False
    ) -> None:
        """`ranks`: the noise is that of ranks, sums of counts (`mechanisms.counters.ranks`)."""
        self.ranks = ranks
        self.quantiles = tuple(quantiles)
        self.labels = buckets.labels
        self.edges = buckets.edges
        # By bucket between two edges: how many decimal places give its width six significant
        # digits. Edges are halved, since their difference may exceed all doubles.
        self._decimals = tuple(
            5 - Decimal(high / 2 - low / 2).adjusted()
            for low, high in pairwise(buckets.edges)
        )

    @property
    def head(self) -> dict[str, Any]:
        """The fields that are the same in every snapshot."""
        return {"edges": self.edges, **({"for": RANKS} if self.ranks else {})}

    def fields(self, items: Sequence[tuple[str, int]], sd: float) -> dict[str, Any]:
        """Return the fields of a snapshot with these items: (label, count) of every bucket.

        Counts have noise of this sd; the order of items does not matter.
        """
        fields: dict[str, Any] = self.head
        if self.quantiles:
            by_label = dict(items)
            counts = np.array([by_label[name] for name in self.labels], dtype=float)
            fields["quantiles"] = [self.quantile(counts, sd, q) for q in self.quantiles]
        return fields

    def quantile(self, counts: Floats, sd: float, q: float) -> dict[str, Any]:
        """Return quantile q of the buckets' counts (n + 1,), with its 95 % interval.

        `sd` is that of a count's noise, 0 for exact counts.
        """
        # Bucket k lies between edge k - 1 and edge k, the first and the last beyond all edges. The
        # quantile and the ends of its interval come as a bucket and the fraction of its width.
        # V at the edges, its covariances between neighbours, and the variance of the sum of all.
        variances = rank_variances(len(self.edges), float(q), self.ranks)
        bucket, share, low_bucket, low_share, high_bucket, high_share = (
            quantiles.quantile(
                readonly_contiguous(counts),
                float(sd),
                float(q),
                NORMAL_95,
                *variances,
                np.empty(len(self.edges)),  # scratch, for G at the edges
            )
        )
        none = {"q": q, "bucket": None, "value": None, "low": None, "high": None}
        # Too little is counted.
        if bucket == quantiles.OPEN:
            return none
        # An interval beyond all edges is bounded by the outermost one.
        low = self._end(low_bucket, low_share, self.edges[-1])
        high = self._end(high_bucket, high_share, self.edges[0])
        value = None
        # The outermost buckets have no other end, so no number in them can be named. Rounding must
        # not put the value outside its interval.
        if 0 < bucket < len(self.edges):
            value = self._number_in(bucket, share)
            value = value if low is None else max(value, low)
            value = value if high is None else min(value, high)
        return none | {
            "bucket": self.labels[bucket],
            "value": value,
            "low": low,
            "high": high,
        }

    def _end(self, bucket: int, fraction: float, edge: float) -> float | None:
        """Return an end of an interval as a number, from the kernel's bucket and fraction of it.

        In place of a bucket, EDGE means the outermost `edge`, and OPEN that there is no end: None.
        """
        if bucket == quantiles.EDGE:
            return edge
        return None if bucket == quantiles.OPEN else self._number_in(bucket, fraction)

    def _number_in(self, bucket: int, fraction: float) -> float:
        """Return the number at a fraction of a bucket's width, rounded, and still in the bucket."""
        low = self.edges[bucket - 1]
        high = self.edges[bucket]
        exact = low * (1 - fraction) + high * fraction
        number = round(exact, self._decimals[bucket - 1])
        # 0 for -0.0.
        return min(max(number, low), high) or 0.0


@memoized(64)
def rank_variances(edges: int, q: float, ranks: bool) -> tuple[Floats, Floats, float]:
    """Return the variances of G (see the module) at quantile q of `edges` edges, over sd^2.

    That is V at each edge, the covariance V_(k,k+1) of neighbouring edges, and the variance of the
    sum of all counts. `ranks`: the noise is that of ranks (sums of counts), else independent.
    """
    if not ranks:
        # By edge k: k + 1 buckets below, of n + 1.
        below = np.arange(1.0, edges + 1)
        at_edges = below * ((1 - q) * (1 - q)) + (edges - below + 1) * (q * q)
        # In V at edge k + 1 bucket k + 1 has (1 - q)^2, here (1 - q) (-q): 1 - q less.
        beside = at_edges[1:] - (1 - q)
        return read_only(at_edges), read_only(beside), edges + 1.0
    # G at an edge is the rank there, the sum of the counts below, minus q times the last rank, the
    # sum of all. So variances and covariances are those of such differences.
    noise = ranks_of(edges + 1)
    rank = np.arange(1, edges + 1)
    last = np.full(edges, edges + 1)
    with_all = noise.covariance(rank, last) * q
    of_all = float(noise.covariance(last[:1], last[:1])[0])
    at_edges = noise.covariance(rank, rank) - 2 * with_all + q * q * of_all
    beside = noise.covariance(rank[1:], rank[:-1]) + q * q * of_all
    beside -= with_all[1:] + with_all[:-1]
    # The variance of the noisiest bucket, which is sd^2.
    unit = noise.of_bucket
    return (
        # Rounding may leave it below 0.
        read_only(np.maximum(at_edges, 0.0) / unit),
        read_only(beside / unit),
        of_all / unit,
    )


# Digits of a mean below those of a step.
MEAN_DIGITS = 3


class Means(Frozen):
    """Sums and means of a histogram's items, from released numbers alone.

    A "centred" sum is the released D of the module's docstring, 2 S - R n, whose noise has sd
    `of_sums`; the noise of a count has `sd`. h, m, R and theta are those of the docstring, too.
    """

    def __init__(self, summed: Sum) -> None:
        """`summed` is the setting `sum`: the range and step of the numbers that are added up."""
        self._of = summed
        self.steps = summed.steps  # R
        # Range and step are multiples of 1 / _unit, so the sum m n + h D is a fraction of whole
        # numbers: (n * _twice_middle + D * _step) / (2 * _unit).
        self._unit = math.lcm(
            *(
                Fraction(end).denominator
                for end in (summed.from_, summed.to, summed.step)
            )
        )
        self._twice_middle = int(2 * summed.middle * self._unit)
        self._step = int(summed.step * self._unit)
        self._middle = float(summed.middle)  # m
        self._half = float(Fraction(summed.step) / 2)  # h
        self._ends = float(summed.from_), float(summed.to)
        # Means are rounded to MEAN_DIGITS digits after the first digit of a step.
        self._scale = 10.0 ** (MEAN_DIGITS - summed.step.adjusted())

    def sd(self, sd: float, of_sums: float) -> float:
        """Return the sd of a published sum m n + h D, from those of n (`sd`) and D (`of_sums`)."""
        of_count = self._middle * sd
        of_sum = self._half * of_sums
        return math.sqrt(of_count * of_count + of_sum * of_sum)

    def centred_sd(self, sd: float, of_sum: float) -> float:
        """Bound the sd of a centred sum, from the published sds of a count and (`of_sum`) a sum.

        For readers, who have only these. `sd` computes of_sum^2 = (m sd)^2 + (h d)^2; this solves
        it for d, with the largest `of_sum` and the least `sd` that round to the published ones: sds
        of sums are rounded to significant digits (a relative error), those of counts to decimal
        places. 2^-50 is more than this computation's own rounding.
        """
        most = of_sum * (1 + SUM_SD_ROUNDING) * (1 + 2**-50)
        least = abs(self._middle) * max(sd - SD_ROUNDING, 0.0)
        return math.sqrt(max(most * most - least * least, 0.0)) / self._half

    def head(self, sd: float, of_sums: float) -> dict[str, Any]:
        """Return the field `sum` of a snapshot."""
        return {
            "from": _number(self._of.from_),
            "to": _number(self._of.to),
            "step": _number(self._of.step),
            "sd": rounded_sum_sd(self.sd(sd, of_sums)),
        }

    def rows(
        self, counts: Longs, centred: Longs, sd: float, of_sums: float
    ) -> list[list[float | None]]:
        """Return of released numbers (m,) the sum, mean, and the mean's interval, low and high.

        The mean is None where the count is too small for one.
        """
        sums = self.sums(counts, centred)
        return self._listed(sums, *self.intervals(counts, centred, sd, of_sums))

    @staticmethod
    def _listed(*columns: Floats) -> list[list[float | None]]:
        """Return columns as rows of JSON values; a mean that is NaN becomes None."""
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            [n, None if math.isnan(mean) else mean, *ends] for n, mean, *ends in rows
        ]

    def changed_rows(
        self, counts: Floats, sums: Floats, errors: Sequence[tuple[float, float]]
    ) -> list[list[float | None]]:
        """Return as `rows` the change of a sum, its mean, and the mean's interval, low and high.

        `counts` and `sums` (m,) are differences of published numbers over a window. `errors` are
        published (sd of a count, sd of a sum): one pair for the change, or one for each end of the
        window, which are added, as a difference has at most the sum of both sds. Doubles round by
        far less than the noise.
        """
        sd = sum(of_count for of_count, _ in errors)
        of_sums = sum(self.centred_sd(*error) for error in errors)
        centred = (sums - self._middle * counts) / self._half
        rounded = np.rint(sums * self._scale) / self._scale
        return self._listed(rounded, *self.intervals(counts, centred, sd, of_sums))

    @property
    def unknown(self) -> list[float | None]:
        """Return the row of an item whose sum is not known."""
        return [None, None, *self._ends]

    def sums(self, counts: Longs, centred: Longs) -> Floats:
        """Return the sums (m,), each rounded once from whole numbers of any size."""
        pairs = zip(counts.tolist(), centred.tolist(), strict=True)
        double = 2 * self._unit
        sums = [(n * self._twice_middle + d * self._step) / double for n, d in pairs]
        return np.array(sums, dtype=np.float64)

    def means(self, counts: Longs, sums: Longs) -> Floats:
        """Return exact means of exact counts, above 0, and sums in steps."""
        means: Floats = self._ends[0] + 2 * self._half * (sums / counts)
        return means

    def exact(self, count: int, steps: int) -> tuple[float, float | None]:
        """Return an exact sum and its mean, each rounded once; None is the mean of nothing."""
        total = count * Fraction(self._of.from_) + steps * Fraction(self._of.step)
        return float(total), float(total / count) if count else None

    def intervals(
        self, counts: Longs | Floats, centred: Longs | Floats, sd: float, of_sums: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return the mean of each item's numbers, and the ends of its 95 % interval.

        Where the noisy count is too small for a mean, that is NaN and the interval the whole range.

        Args:
            counts: (m,), noisy counts n, with noise of standard deviation `sd`.
            centred: (m,), noisy centred sums D, with noise of standard deviation `of_sums`.
        """
        n = counts.astype(np.float64)
        d = centred.astype(np.float64)
        theta_max = float(self.steps)
        a = n * n - NORMAL_95 * NORMAL_95 * sd * sd
        has_mean = (n > 0) & (a > 0)
        # Nothing is computed for the others: it might overflow.
        n = n[has_mean]
        d = d[has_mean]
        a = a[has_mean]
        # The ends solve a theta^2 - 2 n D theta + D^2 - 1.96^2 d^2 = 0 (see the module); a quarter
        # of its discriminant is 1.96^2 (a d^2 + s^2 D^2), and `root` the square root of that.
        root = NORMAL_95 * np.sqrt(a * of_sums * of_sums + sd * sd * d * d)
        theta = np.full(len(has_mean), np.nan)
        low = np.full(len(has_mean), -theta_max)
        high = np.full(len(has_mean), theta_max)
        theta[has_mean] = np.clip(d / n, -theta_max, theta_max)
        low[has_mean] = np.clip((n * d - root) / a, -theta_max, theta_max)
        high[has_mean] = np.clip((n * d + root) / a, -theta_max, theta_max)
        # In the unit of the numbers, and rounded: ends outwards, but not beyond the range.
        mean = self._rounded(np.rint, theta)
        low = np.clip(self._rounded(np.floor, low), *self._ends)
        high = np.clip(self._rounded(np.ceil, high), *self._ends)
        return np.clip(mean, low, high), low, high

    def _rounded(self, rounding: Callable[[Floats], Floats], theta: Floats) -> Floats:
        """Return the means m + h theta, rounded to a digit by `rounding`."""
        return rounding((self._middle + self._half * theta) * self._scale) / self._scale


def _number(value: Decimal) -> int | float:
    """Return a decimal as JSON writes it: whole numbers without a point."""
    return int(value) if value == value.to_integral_value() else float(value)


# Decimal places of an sd of counts in a snapshot.
SD_DIGITS = 4
SD_ROUNDING = 0.5 * 10.0**-SD_DIGITS
# Significant digits of an sd of sums, whose unit may be of any size; the largest relative error.
SUM_SD_DIGITS = 9
SUM_SD_ROUNDING = 0.5 * 10.0 ** (1 - SUM_SD_DIGITS)


def rounded_sum_sd(sd: float) -> float:
    """Round an sd of sums to significant digits, to the nearest: the same on every machine."""
    return float(f"{sd:.{SUM_SD_DIGITS}g}")


class Windows:
    """The noise of changes of a histogram's counts over its windows, which snapshots state.

    Not thread-safe. Raises TypeError if the counts cannot be subtracted.
    """

    def __init__(self, config: HistogramConfig, mechanism: Mechanism) -> None:
        """Take windows from the settings, and the counters that add noise from the mechanism."""
        # Without epochs, windows are published directly, not as changes of counts since an epoch
        # began.
        lengths = () if config.without_epochs else config.windows
        # Of each window its length in ms and in ticks.
        self._lengths = tuple((length, length // config.tick_ms) for length in lengths)
        # Returns the sd of an item's count at one tick of an epoch minus that at an earlier one.
        # None: there are no windows.
        self._sd: Callable[[int, int], float] | None = None
        # The last tick of every epoch.
        self._last = config.horizon_ticks
        # Counters of the count of all items, and of sums, if these are published. A backtest's
        # mechanism wraps another one: test for the attribute, not the type.
        self._totals: Counter | None = getattr(mechanism, "of_totals", None)
        self._sums: Counter | None = getattr(mechanism, "of_sums", None)
        self._means = None if config.sum is None else Means(config.sum)
        if self._lengths and config.subtracts:
            self._sd = getattr(mechanism, "difference_sd", None)
        if self._lengths and self._sd is None:
            raise TypeError(
                f"mechanism = {mechanism.kind}: must have counts that can be subtracted"
            )

    def at(self, t: int, before: int = 0) -> dict[str, object]:
        """Return the field `windows` of the snapshots at tick t of an epoch, if they have one.

        `before` is how many ticks of the epoch before were published, up to its end.
        """
        if self._sd is None:
            return {}
        windows = []
        for length, ticks in self._lengths:
            # The whole window, if it is within this epoch, or if the count before it was published,
            # `ticks - t` ticks before the end of the last epoch. Otherwise only its part in this
            # epoch.
            covered = ticks if ticks - t < before else min(ticks, t)
            sd = self._change_sd(self._sd, t, covered)
            window = {"ms": length, "ticks": covered, "sd": round(sd, SD_DIGITS)}
            if self._sums is not None and self._means is not None:
                of_sum = self._change_sd(self._sums.difference_sd, t, covered)
                window["sum_sd"] = rounded_sum_sd(self._means.sd(sd, of_sum))
            if self._totals is not None:
                of_all = self._change_sd(self._totals.difference_sd, t, covered)
                window["all_items_sd"] = round(of_all, SD_DIGITS)
            windows.append(window)
        return {"windows": windows}

    def _change_sd(
        self, difference_sd: Callable[[int, int], float], t: int, ticks: int
    ) -> float:
        """Return the sd of what was counted in the last `ticks` ticks before the end of tick `t`.

        `difference_sd` is a counter's: the sd of its noise at a tick minus that at an earlier one.
        """
        if ticks <= t:
            return difference_sd(t, t - ticks)
        # They begin in the epoch before, whose noise is independent: the variances add up.
        assert self._last is not None, "an epoch without an end has none before it"
        since = self._last - (ticks - t)
        of_epoch = difference_sd(t, 0)
        of_last = difference_sd(self._last, since)
        return math.sqrt(of_epoch * of_epoch + of_last * of_last)


Fields = Mapping[str, Any]
LISTS = ("items", "labels", "value", "answers")
# Lists with an element for each of `items`.
LISTED_BESIDE = ("sums",)


def split_fields(fields: Fields, room: int) -> list[dict[str, Any]]:
    """Split a snapshot's fields into pages: its one list is cut, all else is repeated.

    A page's part of the list has at most `room` JSON bytes, provided that no element, with the
    query of its answer, takes more than half of that.
    """
    name = next((name for name in LISTS if isinstance(fields.get(name), list)), None)
    if name is None:
        return [dict(fields)]
    if name == "answers":
        atoms = list(_atoms(fields[name]))
        # A continued answer repeats its query: reserve room for the longest.
        room -= max(
            (len(orjson.dumps(_empty(answer))) + 1 for answer in fields[name]),
            default=0,
        )
    else:
        atoms = [(element, len(orjson.dumps(element)) + 1) for element in fields[name]]
    # Lists with an element for each of these are cut at the same places: their sizes are added.
    beside = {other: fields[other] for other in LISTED_BESIDE if other in fields}
    for of_items in beside.values():
        added = [len(orjson.dumps(element)) + 1 for element in of_items]
        atoms = [(e, size + more) for (e, size), more in zip(atoms, added, strict=True)]
    pages = []
    for start, stop in split_by_size([size for _, size in atoms], room):
        elements = [element for element, _ in atoms[start:stop]]
        of_page = _merged(elements) if name == "answers" else elements
        cut = {other: of_items[start:stop] for other, of_items in beside.items()}
        pages.append({**fields, name: of_page, **cut})
    return pages or [dict(fields)]


def join_pages(pages: Sequence[Fields]) -> dict[str, Any]:
    """Return a snapshot's fields from all its pages, in order."""
    whole = dict(pages[0])
    for name in (*LISTS, *LISTED_BESIDE):
        if isinstance(whole.get(name), list):
            elements = [element for page in pages for element in page[name]]
            whole[name] = _merged(elements) if name == "answers" else elements
    return whole


def join_parts(parts: Sequence[Fields]) -> dict[str, Any]:
    """Return a tick's snapshot from all its parts, as if its stream key were not split.

    Parts have different items of the key, each from an owner partition of its own.
    """
    whole = {
        name: value for name, value in parts[0].items() if name not in ("part", "parts")
    }
    items = [item for part in parts for item in part["items"]]
    # As in a whole snapshot: largest first, ties by label.
    order = sorted(range(len(items)), key=lambda i: (-items[i][1], items[i][0]))
    for name in ("items", *LISTED_BESIDE):
        if name in whole:
            elements = [element for part in parts for element in part[name]]
            whole[name] = [elements[i] for i in order]
    return whole


def _empty(answer: Fields) -> dict[str, Any]:
    """Return a copy of an answer, without the elements of its `value` if that is a list."""
    return (
        {**answer, "value": []} if isinstance(answer["value"], list) else dict(answer)
    )


def _atoms(answers: Sequence[Fields]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the answers, one for each element of their lists, with the JSON bytes that each adds.

    The first element also adds the answer's other fields. Pages may be cut between any two. A comma
    is counted for each.
    """
    for answer in answers:
        head = len(orjson.dumps(_empty(answer))) + 1
        if not isinstance(answer["value"], list) or not answer["value"]:
            yield dict(answer), head
            continue
        for i, element in enumerate(answer["value"]):
            size = len(orjson.dumps(element)) + 1 + (0 if i else head)
            yield {**answer, "value": [element]}, size


def _merged(answers: Sequence[Fields]) -> list[dict[str, Any]]:
    """Join neighbouring answers to the same query, which `_atoms` took apart, into one each."""
    joined: list[dict[str, Any]] = []
    for answer in answers:
        value = answer["value"]
        if joined and joined[-1]["query"] == answer["query"]:
            joined[-1]["value"] += value
        else:
            # A copy of the list, which is added to.
            copied = list(value) if isinstance(value, list) else value
            joined.append({**answer, "value": copied})
    return joined


# Room for two page numbers of ten digits: an empty page is measured with one digit each.
_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedTick:
    """One tick of one series, which is what one topic gets, with all that its snapshots state.

    `series` numbers it among those of its histogram, from 0. `window_ms` is the length of a window,
    and `begin_ms` its begin; None: counts are since the epoch began. `parts` is over how many owner
    partitions a stream key's items are spread. `numeric` and `means` make the fields for buckets
    and sums, if the histogram has them. `windows` is the field of that name.
    """

    histogram: str
    series: int = 0
    epoch: int
    tick: int
    start_ms: int
    end_ms: int
    guarantee: Guarantee
    mechanism: str
    id: str
    release: Release | Items | Answers
    parts: int = 1
    numeric: Numeric | None = None
    means: Means | None = None
    windows: Mapping[str, object] = field(default_factory=dict)
    window_ms: int | None = None
    begin_ms: int | None = None
    #: Whether counts are of different users.
    of_users: bool = False
    #: The id of the epoch before, if this series continues it.
    previous_id: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A message for an output topic: stream key, JSON, and the end of its tick in ms."""

    topic: str
    key: str
    value: bytes
    end_ms: int


def snapshots(
    tick: ReleasedTick,
    ledger: Ledger,
    keys: list[str],
    labels: LabelCache,
    max_bytes: int = VALUE_BYTES,
    part_of: Callable[[str], int] = lambda key: 0,
) -> Iterator[tuple[str, bytes]]:
    """Yield (stream key, JSON) for every stream key, even an empty one; in pages if needed.

    `keys` are the stream keys by number, `labels` caches the texts of the ledger's rows. `part_of`
    returns which part, from 0, of a key's items these are.
    """
    release = tick.release
    frame = _Frame(tick, part_of, max_bytes)
    edges: dict[str, Any] = {} if tick.numeric is None else tick.numeric.head
    if isinstance(release, Answers):
        for index, key in enumerate(keys):
            yield from frame.pages(key, {**release.of_key[index], **edges})
        return
    # The fields beside the items, by stream key.
    further = [edges | _total(release, index) for index in range(len(keys))]
    # The items of every stream key as Python objects, made once, where they are needed.
    of_keys: list[Fields] | None = None
    # If nothing is computed from the items, a kernel writes the JSON of all of them at once, unless
    # it returns None. If a key then needs pages, they are made from Python objects.
    plain = tick.means is None and (tick.numeric is None or not tick.numeric.quantiles)
    if isinstance(release, Release) and plain:
        written = labels.items(ledger, release.rows, release.counts, len(keys))
        if written is not None:
            for index, (key, whole) in enumerate(zip(keys, written, strict=True)):
                items = {"items": orjson.Fragment(whole), **further[index]}
                value = frame.render(key, items)
                if len(value) <= max_bytes:
                    yield key, value
                else:
                    of_keys = of_keys or _items(tick, ledger, len(keys), labels)
                    yield from frame.pages(key, {**of_keys[index], **further[index]})
            return
    of_keys = _items(tick, ledger, len(keys), labels)
    for key, fields, more in zip(keys, of_keys, further, strict=True):
        numbers: dict[str, Any] = {}
        if tick.numeric is not None:
            numbers = tick.numeric.fields(fields["items"], round(release.sd, SD_DIGITS))
        yield from frame.pages(key, {**fields, **more, **numbers})


def _total(release: Release | Items, key: int) -> dict[str, Any]:
    """Return the field `all_items` of stream key number `key`, if that count is released."""
    totals = release.totals if isinstance(release, Release) else None
    if totals is None:
        return {}
    return {
        "all_items": {
            "count": int(totals.values[key]),
            "sd": round(totals.sd, SD_DIGITS),
        }
    }


def _items(
    tick: ReleasedTick, ledger: Ledger, keys: int, labels: LabelCache
) -> list[Fields]:
    """Return the field `items` of each of `keys` stream keys, with their sums if there are any.

    Largest counts first, ties by label.
    """
    release = tick.release
    means = tick.means
    assert not isinstance(release, Answers), "answers have no items"
    if isinstance(release, Release):
        labels.add_labels(ledger, release.rows)
        key_of = ledger.keys[release.rows]
        names = labels.names
        ranks = labels.rank[release.rows]
    else:
        texts = [text.decode() for text in release.labels]
        key_of = release.keys
        names = sorted(set(texts))
        rank_of = {name: rank for rank, name in enumerate(names)}
        ranks = np.array([rank_of[text] for text in texts], dtype=np.int64)
    order = np.lexsort((ranks, -release.counts, key_of))
    counts = release.counts[order].tolist()
    items = [
        (names[rank], n) for rank, n in zip(ranks[order].tolist(), counts, strict=True)
    ]
    starts = np.searchsorted(key_of[order], np.arange(keys + 1)).tolist()
    if means is None or not isinstance(release, Release) or release.sums is None:
        return [{"items": items[start:stop]} for start, stop in pairwise(starts)]
    sds = release.sd, release.sums.sd
    sums = means.rows(release.counts[order], release.sums.values[order], *sds)
    head = means.head(*sds)
    return [
        {"items": items[start:stop], "sums": sums[start:stop], "sum": head}
        for start, stop in pairwise(starts)
    ]


class _Frame:
    """What the snapshots of a tick have in common: the fields before and behind the items."""

    def __init__(
        self, tick: ReleasedTick, part_of: Callable[[str], int], max_bytes: int
    ) -> None:
        """`part_of` is as in `snapshots`; a page has at most `max_bytes`.

        Fields have a fixed order: a key's own ones come between the two groups made here.
        """
        self._tick = tick
        self._part_of = part_of
        self._max_bytes = max_bytes
        release = tick.release
        threshold = release.threshold
        # Without the fields that are not set.
        guarantee = msgspec.to_builtins(tick.guarantee)
        self._before: Fields = {
            "epoch": tick.epoch,
            "tick": tick.tick,
            "start": tick.start_ms,
            "end": tick.end_ms,
        }
        if tick.window_ms is not None:
            window: dict[str, object] = {"ms": tick.window_ms, "from": tick.begin_ms}
            if tick.of_users:
                window["counts"] = OF_USERS
            self._before = {**self._before, "window": window}
        # Answers with several noises have no sd. If all items are declared, there is no threshold.
        self._behind: Fields = {
            "sd": None if release.sd is None else round(release.sd, SD_DIGITS),
            "threshold": None if threshold is None else float(threshold),
            **tick.windows,
            "guarantee": orjson.Fragment(orjson.dumps(guarantee)),
            "mechanism": tick.mechanism,
            "id": tick.id,
        }
        if tick.previous_id is not None:
            self._behind = {**self._behind, "previous_id": tick.previous_id}

    def render(self, key: str, fields: Fields, page: int = 1, pages: int = 1) -> bytes:
        """Return one page as JSON; `fields` are those of this stream key, such as its items.

        The order of fields is part of what is published: equal snapshots have equal bytes.
        """
        tick = self._tick
        parts = {}
        if tick.parts > 1:
            parts = {"part": self._part_of(key) + 1, "parts": tick.parts}
        return orjson.dumps(
            {
                "histogram": tick.histogram,
                "key": key,
                **self._before,
                **fields,
                **self._behind,
                **parts,
                "page": page,
                "pages": pages,
            }
        )

    def pages(self, key: str, fields: Fields) -> Iterator[tuple[str, bytes]]:
        """Yield a stream key's snapshot, in as many pages as `max_bytes` demands."""
        whole = self.render(key, fields)
        if len(whole) <= self._max_bytes:
            yield key, whole
            return
        lists = (*LISTS, *LISTED_BESIDE)
        empty = {name: [] if name in lists else field for name, field in fields.items()}
        # Room for the lists: what a page without them leaves, with the largest page numbers.
        room = self._max_bytes - len(self.render(key, empty)) - _DIGITS
        cut = split_fields(fields, room)
        for page, part in enumerate(cut, 1):
            yield key, self.render(key, part, page, len(cut))
