"""Codes of texts: what labels and stream keys are, from the first byte of an event to a commit."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from workers.kernels import texts as kernels
from workers.mechanisms.ledger import grown
from workers.mechanisms.texts import Texts, fixed

# A vocabulary with more texts, or with more bytes of them, is left for a new one.
TEXTS_MAX = 1 << 21
BYTES_MAX = 128 << 20
_FIRST_TEXTS = 1 << 10
NAMES_KEPT = 10_000

Codes = NDArray[np.int32]


class Vocabulary:
    """Texts and their codes, from 0 in the order in which they were met. Its repr shows none.

    It only grows: a code means the same text as long as the vocabulary lives. Not for two threads.
    """

    def __init__(self, first: Iterable[str] = ()) -> None:
        """
        Args:
            first: texts that have the first codes, in their order.
        """
        # Secret, so that nobody can choose labels that all meet in one slot.
        self._secret = np.frombuffer(secrets.token_bytes(16), dtype=np.uint64)
        self._slots = np.full(4 * _FIRST_TEXTS, -1, dtype=np.int32)
        self._hashes = np.empty(_FIRST_TEXTS, dtype=np.uint64)
        self._ends = np.empty(_FIRST_TEXTS, dtype=np.int64)
        self._text = np.empty(16 * _FIRST_TEXTS, dtype=np.uint8)
        self._used = 0
        self._names: list[str] = []
        self._found = np.empty(kernels.AHEAD, dtype=np.uint64)
        self._recent = np.full((kernels.RECENT, kernels.RECENT_COLUMNS), kernels.FREE)
        self.codes_of(Texts.of(text.encode() for text in first))

    def __repr__(self) -> str:
        return f"Vocabulary({self._used} texts)"

    def __len__(self) -> int:
        return self._used

    @property
    def full(self) -> bool:
        """Whether a new vocabulary should be begun before the next batch."""
        return self._used > TEXTS_MAX or self._bytes > BYTES_MAX

    @property
    def _bytes(self) -> int:
        return int(self._ends[self._used - 1]) if self._used else 0

    def codes(self, data: NDArray[np.uint8], places: NDArray[np.int64]) -> Codes:
        """Return the codes of texts; those that are new are added.

        Args:
            data: uint8.
            places: int64 (n, 2), start and stop of each text in `data`.

        Raises:
            IndexError: a place lies outside the data.
        """
        codes = np.empty(len(places), dtype=np.int32)
        data, places = fixed(data), fixed(places)
        done = 0
        while True:
            done, self._used = kernels.code_texts(
                data,
                places,
                done,
                self._secret,
                self._slots,
                self._hashes,
                self._ends,
                self._text,
                self._used,
                self._found,
                self._recent,
                codes,
            )
            if done == len(places):
                return codes
            if done == kernels.OUTSIDE:
                raise IndexError("places: a text lies outside the data")
            self._grow(int(places[done, 1] - places[done, 0]))

    def codes_of(self, texts: Texts) -> Codes:
        """Return the codes of a column of texts; those that are new are added."""
        return self.codes(texts.text, np.stack((texts.ends - texts.lengths, texts.ends), axis=1))

    def code_of(self, text: str) -> int:
        """Return the code of one text; if it is new it is added."""
        return int(self.codes_of(Texts.of([text.encode()]))[0])

    def texts(self, codes: NDArray[np.int32] | NDArray[np.int64]) -> Texts:
        """Return the texts of codes, in their order."""
        return Texts(self._text[: self._bytes], self._ends[: self._used]).take(codes)

    def name(self, code: int) -> str:
        """Return the text of one code; the first ones are kept, as stream keys are asked for again
        and again.
        """
        if len(self._names) <= code < NAMES_KEPT:
            more = range(len(self._names), min(self._used, NAMES_KEPT))
            self._names += [self._text_of(each) for each in more]
        return self._names[code] if code < len(self._names) else self._text_of(code)

    def _text_of(self, code: int) -> str:
        start = int(self._ends[code - 1]) if code else 0
        return self._text[start : int(self._ends[code])].tobytes().decode()

    def _grow(self, length: int) -> None:
        """Make room for another text of `length` bytes."""
        if self._used == len(self._ends):
            self._hashes = grown(self._hashes, 2 * self._used)
            self._ends = grown(self._ends, 2 * self._used)
        if self._bytes + length > len(self._text):
            self._text = grown(self._text, max(2 * len(self._text), self._bytes + length))
        if 2 * (self._used + 1) > len(self._slots):
            self._slots = np.full(2 * len(self._slots), -1, dtype=np.int32)
            kernels.fill_slots(self._hashes, self._used, self._slots)
