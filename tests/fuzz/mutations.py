"""Random changes of an input: bits, cuts, repetitions, splices, numbers at limits, nesting, bad UTF-8."""

import random
import re
from collections.abc import Callable, Sequence

from tests.events.json_corpus import NOT_UTF8, UTF8

LIMITS = sorted(
    {
        sign * (1 << n) + d
        for n in (7, 8, 15, 16, 31, 32, 53, 63, 64)
        for d in (-1, 0, 1)
        for sign in (-1, 1)
    }
    | {0, 1, -1, 10**18, 10**19, 10**400}
)
FLOATS = (
    b"1e308",
    b"1e309",
    b"-1e999",
    b"1e-999",
    b"5e-324",
    b"-0.0",
    b"0." + b"3" * 40,
    b"nan",
    b"inf",
)
LONG = (63, 64, 65, 255, 1_023, 1_024, 1_025, 4_097)
DEPTHS = (16, 32, 64, 500, 513, 1_100)
PAIRS = ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]"), (b"(", b")"), (b"a.", b""))
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?")


class Mutator:
    def __init__(
        self, rng: random.Random, tokens: Sequence[bytes], max_bytes: int
    ) -> None:
        """`tokens` are what the format gives a meaning."""
        self._random = rng
        self._max = max_bytes
        self._tokens = [*tokens, *NOT_UTF8, *UTF8]
        self._ways: Sequence[Callable[[bytes, bytes], bytes]] = (
            self.flip,
            self.flip,
            self.byte,
            self.byte,
            self.cut,
            self.end,
            self.repeat,
            self.splice,
            self.insert,
            self.token,
            self.token,
            self.number,
            self.number,
            self.binary,
            self.nest,
            self.long,
        )

    def mutated(self, seeds: Sequence[bytes]) -> bytes:
        """Return one of the inputs, changed one to eight times; now and then as it is."""
        choice = self._random.choice
        made = choice(seeds)
        for _ in range(choice((0, 1, 1, 1, 2, 2, 4, 8))):
            made = choice(self._ways)(made, choice(seeds))[: self._max]
        return made

    def flip(self, data: bytes, _other: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return (
            data[:at]
            + bytes((data[at] ^ 1 << self._random.randrange(8),))
            + data[at + 1 :]
        )

    def byte(self, data: bytes, _other: bytes) -> bytes:
        at = self._at(data)
        odd = self._random.choice((0, 1, 0x7F, 0x80, 0xFF, self._random.randrange(256)))
        return data[:at] + bytes((odd,)) + data[at + 1 :]

    def cut(self, data: bytes, _other: bytes) -> bytes:
        start, stop = self._part(data)
        return data[:start] + data[stop:]

    def end(self, data: bytes, _other: bytes) -> bytes:
        return data[: self._at(data)]

    def repeat(self, data: bytes, _other: bytes) -> bytes:
        start, stop = self._part(data)
        return (
            data[:stop]
            + data[start:stop] * self._random.choice((1, 1, 2, 9, 64))
            + data[stop:]
        )

    def splice(self, data: bytes, other: bytes) -> bytes:
        return data[: self._at(data)] + other[self._at(other) :]

    def insert(self, data: bytes, other: bytes) -> bytes:
        at = self._at(data)
        (start, stop) = self._part(other)
        return data[:at] + other[start:stop] + data[at:]

    def token(self, data: bytes, _other: bytes) -> bytes:
        start, stop = (
            self._part(data) if self._random.random() < 0.5 else (self._at(data),) * 2
        )
        return data[:start] + self._random.choice(self._tokens) + data[stop:]

    def number(self, data: bytes, other: bytes) -> bytes:
        """Replace a decimal number by one at a limit."""
        found = list(_NUMBER.finditer(data))
        if not found:
            return self.binary(data, other)
        start, stop = self._random.choice(found).span()
        whole = str(self._random.choice(LIMITS)).encode()
        return (
            data[:start]
            + self._random.choice(
                (whole, whole, *FLOATS[:1], self._random.choice(FLOATS))
            )
            + data[stop:]
        )

    def binary(self, data: bytes, _other: bytes) -> bytes:
        """Overwrite bytes with a number at a limit, of a fixed or a variable width."""
        at = self._at(data)
        number = self._random.choice(LIMITS[1:-1])
        if self._random.random() < 0.3:
            made = bytearray()
            left = number & (1 << 64) - 1
            while left > 0x7F:
                made.append(left & 0x7F | 0x80)
                left >>= 7
            return data[:at] + bytes((*made, left)) + data[at + 1 :]
        width = self._random.choice((1, 2, 4, 8))
        order = self._random.choice(("little", "big"))
        fixed = (number & (1 << 8 * width) - 1).to_bytes(width, order)  # type: ignore[arg-type]  # one of the two
        return data[:at] + fixed + data[at + width :]

    def nest(self, data: bytes, _other: bytes) -> bytes:
        (start, stop) = self._part(data)
        depth = self._random.choice(DEPTHS)
        begin, end = self._random.choice(PAIRS)
        return (
            data[:start] + begin * depth + data[start:stop] + end * depth + data[stop:]
        )

    def long(self, data: bytes, _other: bytes) -> bytes:
        at = self._at(data)
        near = data[at : at + 1] or b"x"
        return (
            data[:at]
            + self._random.choice((near, b"x", b" ", b"\x80"))
            * self._random.choice(LONG)
            + data[at:]
        )

    def _at(self, data: bytes) -> int:
        return self._random.randrange(len(data) + 1)

    def _part(self, data: bytes) -> tuple[int, int]:
        start = self._at(data)
        most = self._random.choice((1, 4, 16, 64, len(data)))
        return start, min(len(data), start + self._random.randint(1, most or 1))
