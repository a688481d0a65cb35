"""Batch shapes and their mutations: record kinds, field contents, frequencies and compression."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

MAX_BYTES = 1_000_000
#: All records of a batch together; a longer batch costs as much for each byte, or a planted fault is found.
BATCH_BYTES = 3_000_000
RECORDS = 60_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW_MS = 1_795_296_236_471

Atom = Callable[[int, random.Random], bytes]


def _repeated(
    opening: bytes, one: bytes, closing: bytes, separator: bytes = b","
) -> Atom:
    def made(size: int, rng: random.Random) -> bytes:
        number = max(1, size // (len(one) + len(separator)))
        return opening + separator.join([one] * number) + closing

    return made


def _numbered(opening: bytes, one: bytes, closing: bytes, digits: int = 6) -> Atom:
    """Elements that all differ: `one` holds a place for a number."""

    def made(size: int, rng: random.Random) -> bytes:
        first = rng.randrange(10**digits)
        number = max(1, size // (len(one % 0) + digits))
        return opening + b",".join([one % (first + i) for i in range(number)]) + closing

    return made


def _text(one: bytes) -> Atom:
    return lambda size, rng: b'"' + one * max(1, size // len(one)) + b'"'


def _nested(opening: bytes, closing: bytes) -> Atom:
    def made(size: int, rng: random.Random) -> bytes:
        depth = min(max(1, size // (len(opening) + len(closing))), 2_000)
        return opening * depth + b"1" + closing * depth

    return made


#: Make a JSON value of about a given number of bytes.
ATOMS: Mapping[str, Atom] = MappingProxyType(
    {
        "word": lambda size, rng: b'"item%d"' % rng.randrange(1_000),
        "number": lambda size, rng: b"%d" % rng.randrange(1_000),
        "null": lambda size, rng: b"null",
        "absent": lambda size, rng: b"",
        "cut off": lambda size, rng: b'["a","b',
        "ones": _repeated(b"[", b"1", b"]"),
        "nulls": _repeated(b"[", b"null", b"]"),
        "words": _repeated(b"[", b'"a"', b"]"),
        "empty words": _repeated(b"[", b'""', b"]"),
        "escaped words": _repeated(b"[", rb'"\n"', b"]"),
        "distinct words": _numbered(b"[", b'"%d"', b"]"),
        "distinct escaped": _numbered(b"[", rb'"\t%d"', b"]"),
        "long labels": _numbered(b"[", b'"' + b"x" * 1_000 + b'%d"', b"]"),
        "too long labels": _numbered(b"[", b'"' + b"x" * 1_100 + b'%d"', b"]"),
        "exponents": _repeated(b"[", b"1e1", b"]"),
        "huge exponents": _repeated(b"[", b"1e399", b"]"),
        "points": _repeated(b"[", b"0.5", b"]"),
        "distinct points": _numbered(b"[", b"%d.25", b"]"),
        "long points": _repeated(b"[", b"0." + b"3" * 60, b"]"),
        "whole numbers": _numbered(b"[", b"%d", b"]"),
        "large numbers": _repeated(b"[", b"9" * 30, b"]"),
        "digits": lambda size, rng: b"1" * max(1, size),
        "true": _repeated(b"[", b"true", b"]"),
        "counts": _numbered(b"{", b'"%d":1', b"}"),
        "escaped counts": _numbered(b"{", rb'"\t%d":1', b"}"),
        "same counts": _repeated(b"{", b'"a":1', b"}"),
        "lines": _repeated(b"[", b'{"sku":"a","qty":2}', b"]"),
        "short lines": _repeated(b"[", b'{"sku":1,"qty":2}', b"]"),
        "distinct lines": _numbered(b"[", b'{"sku":"%d","qty":2}', b"]"),
        "lines turned": _repeated(
            b"[", b'{"qty":2,"sku":"a"},{"sku":"a","qty":2}', b"]"
        ),
        "empty lines": _repeated(b"[", b"{}", b"]"),
        "lines twice": _repeated(b"[", b'{"sku":1,"qty":2,"sku":3}', b"]"),
        "lines of exponents": _repeated(b"[", b'{"sku":"a","qty":1e0}', b"]"),
        "lines of halves": _repeated(b"[", b'{"sku":1,"qty":0.5}', b"]"),
        "lines of long halves": _repeated(
            b"[", b'{"sku":1,"qty":0.5%s}' % (b"0" * 31), b"]"
        ),
        "halves, then a long one": lambda size, rng: (
            b"["
            + b'{"sku":1,"qty":0.5},' * max(1, size // 21)
            + b'{"sku":1,"qty":0.%s5}]' % (b"0" * 31)
        ),
        "text": _text(b"a"),
        "escaped text": _text(rb"\u0061"),
        "quotes": _text(rb"\""),
        "wide text": _text("\U0001f600".encode()),
        "surrogates": _text(rb"\ud83d\ude00"),
        "invalid UTF-8 last": lambda size, rng: b'"' + b"a" * size + b'\xff"',
        "half a surrogate last": lambda size, rng: b'"' + b"a" * size + rb'\ud800"',
        "lists": _repeated(b"[", b"[]", b"]"),
        "objects": _repeated(b"[", b"{}", b"]"),
        "depth": _nested(b"[", b"]"),
        "depth of objects": _nested(b'{"a":', b"}"),
        "spaces": lambda size, rng: b" " * size + b"1",
        "spaces within": _repeated(b"[", b"1", b"]", b" , "),
    }
)
#: Fields of a record, beside those that repeat.
FIELDS = ("key", "items", "ts", "user", "lines", "price", "kind", "other")
#: What is done to a record when its fields are written.
HABITS = (
    *("plain", "ten of each", "names twice", "many others"),
    *("long names", "escaped names", "tail", "spaced"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of records: an atom and a size for each field, how it is written, how many in a row."""

    fields: tuple[tuple[str, str, int], ...]
    habit: str = "plain"
    habit_size: int = 0
    times: int = 1
    key_bytes: int = 0
    null: bool = False

    def value(self, rng: random.Random, most: int) -> bytes | None:
        """Return a record's value, with no field larger than this many bytes."""
        if self.null:
            return None
        made = {
            name: ATOMS[atom](min(size, most), rng) for name, atom, size in self.fields
        }
        made = {"key": b'"s1"', "ts": b"%d" % NOW_MS, **made}
        size = min(self.habit_size, most)
        colon, comma = (b" : ", b" , ") if self.habit == "spaced" else (b":", b",")
        names = {name: name.encode() for name in made}
        if self.habit == "escaped names":
            names = {
                name: b"".join(b"\\u%04x" % c for c in name.encode()) for name in made
            }
        parts = [
            b'"' + names[name] + b'"' + colon + made[name]
            for name in made
            if made[name]
        ]
        if self.habit == "ten of each":
            parts = parts * 10
        elif self.habit == "names twice":
            parts = [*parts, b'"ts":%d' % NOW_MS]
        elif self.habit == "many others":
            parts = [*(b'"f%d":%d' % (i, i) for i in range(max(1, size // 12))), *parts]
        elif self.habit == "long names":
            parts = [b'"' + b"n" * max(1, size) + b'":1', *parts]
        tail = b"}" if self.habit != "tail" else b"," * max(1, size)
        return b"{" + comma.join(parts) + tail


@dataclass(frozen=True, slots=True)
class Shape:
    kinds: tuple[Kind, ...]
    rounds: int = 1
    codec: str = "none"
    seed: int = 0

    def records(
        self, most: int = BATCH_BYTES
    ) -> tuple[list[bytes | None], list[bytes | None]]:
        """Return keys and values of a batch; it, and every field, is at most this many bytes."""
        rng = random.Random(self.seed)
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        size = 0
        for _ in range(self.rounds):
            for kind in self.kinds:
                for _ in range(kind.times):
                    value = kind.value(rng, most)
                    size += len(value or b"") + kind.key_bytes + 8
                    if values and (size > most or len(values) >= RECORDS):
                        return keys, values
                    values.append(value)
                    keys.append(b"k" * kind.key_bytes if kind.key_bytes else None)
        return keys, values


def of(**fields: tuple[str, int]) -> Kind:
    return Kind(tuple((name, atom, size) for name, (atom, size) in fields.items()))


def begins(fields: Sequence[str] = FIELDS) -> list[Shape]:
    """Return simple shapes, where a search begins: every atom in each field, at three sizes; every habit; nulls."""
    found: list[Shape] = []
    for name in fields:
        for atom in ATOMS:
            for size, rounds in ((970_000, 1), (2_000, 1_400), (20, 60_000)):
                found.append(Shape((of(**{name: (atom, size)}),), rounds))
    for habit in HABITS:
        for size in (10, 2_000, 900_000):
            kind = Kind((("items", "words", 20),), habit, size)
            found.append(Shape((kind,), max(1, 60_000 // max(1, size // 30))))
    nulls = (Kind((), null=True, key_bytes=size) for size in (0, 1_000))
    return found + [Shape((kind,), RECORDS) for kind in nulls]


def together(size: int = 6_000) -> list[Shape]:
    """Return shapes with every atom in one batch: for each field, and for each habit in `items`.

    A few batches tell whether anything is bad; a climb then drops what is not.
    """
    written = [
        *((name, "plain") for name in FIELDS),
        *(("items", habit) for habit in HABITS[1:]),
    ]
    return [
        Shape(
            tuple(Kind(((name, atom, size),), habit, size) for atom in ATOMS), RECORDS
        )
        for name, habit in written
    ]


def changed(shape: Shape, rng: random.Random) -> Shape:
    kinds = list(shape.kinds)
    at = rng.randrange(len(kinds))
    kind = kinds[at]
    choice = rng.randrange(11)
    if choice <= 2:
        fields = [each for each in kind.fields if rng.random() < 0.8]
        name = rng.choice(FIELDS)
        fields = [each for each in fields if each[0] != name]
        fields.append((name, rng.choice(list(ATOMS)), _size(rng)))
        kinds[at] = replace(kind, fields=tuple(fields))
    elif choice <= 5 and kind.fields:
        fields = list(kind.fields)
        place = rng.randrange(len(fields))
        name, atom, size = fields[place]
        size = int(size * rng.choice((0.3, 0.7, 0.9, 1.1, 1.5, 3.0)))
        fields[place] = (name, atom, max(1, min(980_000, size)))
        kinds[at] = replace(kind, fields=tuple(fields))
    elif choice == 6:
        kinds[at] = replace(kind, habit=rng.choice(HABITS), habit_size=_size(rng))
    elif choice == 7:
        times = int(kind.times * rng.choice((0.1, 0.5, 2, 10)))
        kinds[at] = replace(kind, times=max(1, min(20_000, times)))
    elif choice == 8 and len(kinds) < 4:
        other = rng.choice(begins()).kinds[0]
        place = rng.randrange(len(kinds) + 1)
        kinds.insert(place, replace(other, times=rng.choice((1, 1, 10, 1_000))))
    elif choice == 9 and len(kinds) > 1:
        del kinds[at : at + rng.choice((1, len(kinds) // 2))]
    else:
        key_bytes = rng.choice((0, 0, 5, 1_000, 2_000))
        kinds[at] = replace(kind, key_bytes=key_bytes, null=rng.random() < 0.05)
    rounds = max(
        1, min(RECORDS, int(shape.rounds * rng.choice((0.1, 0.5, 1, 1, 1, 1, 2, 10))))
    )
    codec = rng.choice(CODECS) if rng.random() < 0.1 else shape.codec
    seed = rng.randrange(1 << 30) if rng.random() < 0.1 else shape.seed
    return Shape(tuple(kinds), rounds, codec, seed)


def _size(rng: random.Random) -> int:
    return int(10 ** rng.uniform(0.5, 5.98))
