"""Columns of texts, which hold the labels of both stages without an object per label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.types import Bytes, Longs


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Read-only column of texts: concatenated bytes, ascending ends. ValueError if they differ."""

    text: Bytes
    ends: Longs

    def __post_init__(self) -> None:
        last = int(self.ends[-1]) if len(self.ends) else 0
        if last != len(self.text):
            raise ValueError(
                f"ends: {len(self.ends)} texts end at {last} of {len(self.text)} bytes"
            )
        object.__setattr__(self, "text", readonly_contiguous(self.text))
        object.__setattr__(self, "ends", readonly_contiguous(self.ends))

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Texts:
        texts = list(texts)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        return cls.from_lengths(b"".join(texts), lengths)

    @classmethod
    def from_lengths(cls, text: bytes, lengths: NDArray[Any]) -> Texts:
        """Return a column over `text`, without a copy, given its texts' lengths (n,)."""
        return cls(
            np.frombuffer(text, dtype=np.uint8), np.cumsum(lengths, dtype=np.int64)
        )

    @classmethod
    def concat(cls, columns: Sequence[Texts]) -> Texts:
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return NO_TEXTS
        starts = np.cumsum([0, *(len(column.text) for column in columns[:-1])])
        ends = [
            column.ends + start
            for column, start in zip(columns, starts.tolist(), strict=True)
        ]
        return cls(
            np.concatenate([column.text for column in columns]), np.concatenate(ends)
        )

    def __repr__(self) -> str:
        return f"Texts({len(self.ends)})"

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        n = len(self.ends)
        if not -n <= row < n:
            raise IndexError(f"text {row} of {n}")
        row %= n
        start = int(self.ends[row - 1]) if row else 0
        return self.text[start : int(self.ends[row])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        whole = self.text.tobytes()
        return (whole[start:end] for start, end in pairwise((0, *self.ends.tolist())))

    @property
    def lengths(self) -> Longs:
        lengths = self.ends.copy()
        lengths[1:] -= self.ends[:-1]
        return lengths

    def part(self, start: int, stop: int) -> Texts:
        ends = self.ends[start:stop]
        before = int(self.ends[start - 1]) if 0 < start <= len(self.ends) else 0
        return Texts(
            self.text[before : int(ends[-1]) if len(ends) else before], ends - before
        )

    def take(self, rows: NDArray[Any]) -> Texts:
        """Return the texts of `rows` (m,), in that order; raise IndexError for a wrong row."""
        from workers.arrays.text_columns import gather_ends, gather_text

        rows = readonly_contiguous(np.ascontiguousarray(rows, dtype=np.int64))
        ends = np.empty(len(rows), dtype=np.int64)
        size = gather_ends(self.ends, rows, ends)
        if size < 0:
            raise IndexError(f"rows: one of them is not below {len(self)}")
        text = np.empty(size, dtype=np.uint8)
        gather_text(self.text, self.ends, rows, text)
        return Texts(text, ends)


def readonly_contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous, read-only view or copy: kernels are compiled for such arguments only."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


NO_TEXTS = Texts(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64))
