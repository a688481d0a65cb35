"""Instrument the mechanisms' noise: record draws, move single values, repeat picks, plant errors.

All randomness of the core goes through these: `InversionTable.draw` (integers), `Counter.draw` and
the `at` of its columns (sums of normal numbers), and `selection.peel` (every pick of the
exponential mechanism). A noise value's key is its block, tag XOR cell: the word is AES
of it; a normal number's has its half of the word as well.

    drawn    block -> (its table, the value), of integers
    numbers  block and half -> the variance of the normal number
    peels    first word -> a call of the exponential mechanism: candidates, their scores, the picks
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows
from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.counters.active import ActiveColumns
from workers.mechanisms.counters.base import Columns, Counter
from workers.mechanisms.counters.line import LineColumns
from workers.mechanisms.counters.ranks import RankColumns, Ranked
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import selection
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, Geometric
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.normal import add_fine
from workers.mechanisms.noise.normal import table as normal_table
from workers.mechanisms.noise.rounded_gaussian import (
    RoundedGaussian,
    rounded_gaussian,
)
from workers.mechanisms.one_shot.algorithms import Cell

Block = tuple[int, int]
Half = tuple[int, int, int]
Samples = list[tuple[Tags, Longs]]
BOTTOM = "bottom"
# Floats and their shifts are exact multiples of 2^-_BITS.
_BITS = 256
# Coefficients of value nodes are multiples of 2^-_VALUE_BITS.
_VALUE_BITS = 15


@dataclass(frozen=True)
class Peel:
    # by an identity shared by both neighbours (BOTTOM among them)
    scores: Mapping[object, int]
    picked: tuple[object, ...]  # identities, in order; BOTTOM if it ended the picks
    scale: Fraction  # b


@dataclass
class Probe:
    """Changes to apply to noise, and a record of the noise seen."""

    # of the noise values of blocks
    shifts: Mapping[Block, int] = field(default_factory=dict)
    # the same of normal numbers
    of_numbers: Mapping[Half, Fraction] = field(default_factory=dict)
    script: Mapping[Block, Peel] | None = (
        None  # picks to repeat, by a call's first word
    )
    # planted error: multiplies the variance of noise and picks
    factor: Fraction = Fraction(1)
    keep_values: bool = (
        True  # whether `drawn` is kept (an entry a value); else only `samples`
    )
    drawn: dict[Block, tuple[InversionTable, int]] = field(default_factory=dict)
    numbers: dict[Half, Fraction] = field(default_factory=dict)
    samples: dict[InversionTable, Samples] = field(default_factory=dict)
    peels: dict[Block, Peel] = field(default_factory=dict)
    _moved: dict[tuple[int, int, bytes], Any] = field(default_factory=dict)
    _laws: dict[str, InversionTable] = field(default_factory=dict)
    _known: dict[int, tuple[InversionTable, Samples]] = field(default_factory=dict)
    _others: dict[int, tuple[InversionTable, InversionTable]] = field(
        default_factory=dict
    )
    _ids: list[Block] = field(default_factory=list)

    def drew(
        self, table: InversionTable, cell: Block, tags: Tags, out: NDArray[Any]
    ) -> None:
        blocks = tags ^ np.array(cell, dtype=np.uint64)
        if not self.keep_values:
            known = self._known.get(id(table))
            if known is None:
                # By law: the caches of tables are bounded, so a table may have been built twice.
                law = self._laws.setdefault(repr(table), table)
                # Keep the table alive, so that no other one gets its id.
                known = self._known[id(table)] = table, self.samples.setdefault(law, [])
            known[1].append((blocks, out.astype(np.int64)))
            return
        for row, (high, low) in enumerate(blocks.tolist()):
            out[row] += self.shifts.get((high, low), 0)
            self.drawn[high, low] = (table, int(out[row]))

    def peeled(
        self,
        counts: Longs,
        bottom: int | None,
        scale: Fraction,
        k: int,
        words: Sequence[Block],
    ) -> tuple[Longs, bool]:
        n = len(counts)
        ids: list[object] = (
            list(self._ids[:n]) if bottom is not None else list(range(n))
        )
        scores = dict(zip(ids, counts.tolist(), strict=True))
        scores |= {} if bottom is None else {BOTTOM: bottom}
        if self.script is None:
            picks, ended = _PEEL(
                counts, bottom, _times_root(scale, self.factor), k, words
            )
            names = [ids[i] for i in picks.tolist()] + ([BOTTOM] if ended else [])
        else:
            names = _NOTHING[bottom is None]
            if words[0] in self.script:
                names = list(self.script[words[0]].picked)
            missing = [name for name in names if name not in scores]
            assert not missing, "the neighbour cannot pick what was picked"
            limit = min(k, n + (bottom is not None))
            assert len(names) == limit or BOTTOM in names, (
                "the neighbour picks another number"
            )
            ended = BOTTOM in names
            picks = np.array(
                [ids.index(name) for name in names if name != BOTTOM], dtype=np.int64
            )
        self.peels[words[0]] = Peel(scores, tuple(names), scale)
        return picks, ended

    def values(self, table: InversionTable) -> Longs:
        blocks, values = (
            np.concatenate(parts) for parts in zip(*self.samples[table], strict=True)
        )
        _, once = np.unique(
            np.ascontiguousarray(blocks).view("V16").ravel(), return_index=True
        )
        found: Longs = values[once]
        return found

    def counted(
        self, counter: Counter, stream: NoiseStream, t: int, tags: Tags
    ) -> Longs:
        """Return a counter's noise as the definition has it, each number moved by its shift."""
        sums = np.zeros(len(tags))
        d = counter._denominator
        # Twice the noise, and one for rounding, times d 2^_BITS.
        exact = np.full(len(tags), d << _BITS, dtype=object)
        for node, a in counter.nodes(t).items():
            if self.keep_values:
                exact += 2 * a * self._exact(counter, stream, node, tags)
            else:
                sums += a / d * self._numbers(counter, stream, node, tags)
        if self.keep_values:
            return (exact // (2 * d << _BITS)).astype(np.int64)
        return np.floor(sums + 0.5).astype(np.int64)

    def ranked(
        self, counter: Ranked, stream: NoiseStream, t: int, key_tags: Tags
    ) -> Longs:
        """Return the noise of buckets as the definition has it, each number moved by its shift."""
        ranks = counter.ranks
        keys = len(key_tags)
        tags = ranks.tags(key_tags)
        weights = [ranks.weight(node) for node in ranks.nodes] * keys
        rows = np.zeros(len(tags), dtype=object if self.keep_values else float)
        d = counter._denominator
        for node, a in counter.nodes(t).items():
            if self.keep_values:
                rows += a * self._exact(counter, stream, node, tags, weights)
            else:
                scales = np.tile(ranks.scales, keys) * a / d
                rows += scales * self._numbers(counter, stream, node, tags)
        of_keys = rows.reshape(keys, -1)
        noise = np.zeros((keys, ranks.buckets + 1), dtype=np.int64)
        for place in range(1, ranks.buckets + 1):
            total: Any = np.zeros(keys, dtype=rows.dtype)
            for node, factor in ranks.coefficients(place).items():
                whole = int(factor * 2**_VALUE_BITS)
                total += of_keys[:, ranks.numbers[node]] * whole
            if self.keep_values:
                one = d << _BITS + _VALUE_BITS
                noise[:, place] = ((2 * total + one) // (2 * one)).astype(np.int64)
            else:
                noise[:, place] = np.floor(total / 2**_VALUE_BITS + 0.5)
        return np.diff(noise, axis=1).reshape(-1)

    def _exact(
        self,
        counter: Counter,
        stream: NoiseStream,
        node: Block,
        tags: Tags,
        weights: Sequence[Fraction] = (),
    ) -> Any:
        """Return a node's numbers, moved by their shifts, as integers times 2^_BITS.

        `weights` of rows divide their variance.
        """
        level, k = node
        place = level, k, tags.tobytes()
        if place not in self._moved:
            blocks = (tags ^ np.array((level, k >> 1), dtype=np.uint64)).tolist()
            drawn = self._numbers(counter, stream, node, tags)
            variances = [counter.variance_of(node)] * len(tags)
            if weights:
                drawn = drawn / np.sqrt(np.array(weights, dtype=float))
                variances = [
                    of / weight for of, weight in zip(variances, weights, strict=True)
                ]
            # Exact: to scale a float by a power of two rounds nothing.
            scaled = np.ldexp(drawn, _BITS).tolist()
            moved = np.empty(len(tags), dtype=object)
            for row, ((high, low), number) in enumerate(
                zip(blocks, scaled, strict=True)
            ):
                one = high, low, k & 1
                self.numbers[one] = variances[row]
                whole = int(number)
                assert whole == number
                if one in self.of_numbers:
                    shift = self.of_numbers[one] * (1 << _BITS)
                    assert shift.denominator == 1
                    whole += shift.numerator
                moved[row] = whole
            self._moved[place] = moved
        return self._moved[place]

    def _numbers(
        self, counter: Counter, stream: NoiseStream, node: Block, tags: Tags
    ) -> Floats:
        level, k = node
        words = stream.words(tags, (level, k >> 1))
        found = np.zeros(len(tags))
        sd = np.array([math.sqrt(counter.variance_of(node) * self.factor)])
        add_fine(words[None], np.array([k & 1]), sd, normal_table(), found)
        assert np.isfinite(found).all()
        return found

    @contextmanager
    def watching(self) -> Iterator[Probe]:
        def draw(
            table: InversionTable,
            stream: NoiseStream,
            cell: Block,
            tags: Tags,
            out: NDArray[Any],
        ) -> None:
            if self.factor == 1:
                _DRAW(table, stream, cell, tags, out)
            else:
                # Keep the table alive, so that no other one gets its id.
                if id(table) not in self._others:
                    self._others[id(table)] = table, rescaled(table, self.factor)
                other = self._others[id(table)][1]
                wide = np.empty(len(tags), dtype=other.dtype)
                _DRAW(other, stream, cell, tags, wide)
                out[:] = wide
            self.drew(table, cell, tags, out)

        def largest(cell: Cell, rows: Rows, k: int) -> Rows:
            found = _LARGEST(cell, rows, k)
            self._ids = [(high, low) for high, low in cell.tags[found].tolist()]
            return found

        def at(columns: Any, t: int, tags: Tags) -> Longs:
            return self.counted(columns._counter, columns._stream, t, tags)

        def at_windows(columns: Any, t: int, tags: Tags) -> Longs:
            of_windows = [
                self.counted(counter, columns._stream, t, tags)
                for counter in columns._counters
            ]
            return np.array(of_windows)

        def of_ranks(columns: Any, t: int, key_tags: Tags) -> tuple[Longs, ...]:
            return tuple(
                self.ranked(counter, columns._stream, t, key_tags)
                for counter in columns._counters
            )

        with (
            ExitStack() as counters,
            patch.object(InversionTable, "draw", draw),
            patch.object(selection, "peel", self.peeled),
            patch.object(Cell, "largest", largest),
        ):
            # Estimates of noise as it is need no values, and look at the code that runs.
            if self.keep_values or self.factor != 1:
                counters.enter_context(
                    patch.object(
                        Counter,
                        "draw",
                        lambda counter, *args: self.counted(counter, *args),
                    )
                )
                for kind in (*Columns.__subclasses__(), ActiveColumns):
                    counters.enter_context(patch.object(kind, "at", at))
                counters.enter_context(patch.object(LineColumns, "at", at_windows))
                counters.enter_context(patch.object(RankColumns, "windows", of_ranks))
            yield self


def rescaled(table: InversionTable, factor: Fraction) -> InversionTable:
    """Return the table of the same law with `factor` times the variance."""
    if isinstance(table, IntegerGaussian):
        return integer_gaussian(table.sigma_squared * factor)
    if isinstance(table, RoundedGaussian):
        return rounded_gaussian(table.sigma_squared * factor)
    if isinstance(table, DiscreteLaplace):
        return laplace.discrete_laplace(_times_root(table.scale, factor))
    if isinstance(table, Geometric):
        return laplace.geometric(_times_root(table.scale, factor))
    raise TypeError(f"table = {table!r}: a law that this suite does not know")


@cache
def _times_root(scale: Fraction, factor: Fraction) -> Fraction:
    return scale * Fraction(float(factor) ** 0.5)


# A stream key without items is not asked and shows nothing: if its neighbour has items, BOTTOM must
# come first (this cannot see a private kbar).
_NOTHING: dict[bool, list[object]] = {False: [BOTTOM], True: [0]}
_DRAW = InversionTable.draw
_PEEL = selection.peel
_LARGEST = Cell.largest
