"""Hostile, random and mutated JSON events on which the scanner and the general reader must agree.

`python -m tests.events.json_corpus [--records N] [--seed S]` reads N records with and without the
scanner and prints the counts; exit 1 at the first difference.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from msgspec.structs import replace

from tests.events.reading import amounts_of, event_reader
from workers.events.reading import EventReader, Reading, Reject
from workers.kafka.records import Records
from workers.mechanisms.config.views import Path
from workers.settings.settings import EventsSettings

Row = tuple[int, int, bytes | None, bytes | None, list[bytes], list[int]]
# A difference, and how many records the scanner read, could be read, and were compared.
Compared = tuple[str | None, int, int, int]

BATCH = 4_000
MAX_BYTES = 4_000
PLAIN = EventsSettings(topic="t", key="key", items="items", max_bytes=MAX_BYTES)
NAMES = ("key", "items", "ts", "user")
# Names beyond ASCII, with odd characters, and some that are prefixes of others.
ODD_NAMES = (
    ("clé", "c", "cl", "žluťoučký"),
    ("/", "\x7f", " key", "a b"),
    ("i", "it", "ite", "item"),
)


def settings() -> list[tuple[EventsSettings, str | None]]:
    """Return settings of every kind, keyed with their user field."""
    found: list[tuple[EventsSettings, str | None]] = []
    kinds: Iterable[tuple[Sequence[str], str, bool, str | None]] = product(
        [NAMES], ("", "$key", "$all"), (True, False), (None, "", "$key")
    )
    for names, key, has_time, user in [
        *kinds,
        *((names, "", True, "") for names in ODD_NAMES),
    ]:
        key_field, items, time_field, user_field = (
            str(Path((name,))) for name in names
        )
        timestamp = time_field if has_time else None
        events = replace(PLAIN, key=key or key_field, items=items, timestamp=timestamp)
        found.append((events, user_field if user == "" else user))
    return found


def readers() -> list[EventReader]:
    return [event_reader(*each) for each in settings()]


# Valid and invalid values, and bytes that resemble values.
NUMBERS = [
    b"1 2",
    *(
        b"0 -0 00 01 -01 1 -1 7.0 1.0 -1.5 1. .5 -.5 - --1 +1 1e3 1E3 1e+3 1e-3 1e 1e+ 1.5e3 "
        b"0e0 0.0 0x10 1_000 1,2 1n NaN -NaN Infinity -Infinity inf 1e308 1e309 -1e999 1e-999 "
        b"0.1e1"
    ).split(),
    *(b"9" * n for n in (12, 13, 15, 16, 17, 18, 19, 20, 30, 309, 400)),
    *(b"1" + b"0" * n for n in (11, 12, 15, 16, 17, 18)),
    *(b"-" + b"9" * n for n in (15, 16, 19, 20)),
    *(b"0." + b"3" * n for n in (15, 16, 30, 31, 40, 41)),
    b"1" * 41,
    *b"0.1e+07 1e-7 2E99 2E100 1e+ -1.5e-05 1e1.5".split(),
    *(str(2**n + d).encode() for n in (31, 32, 40, 53, 62, 63, 64) for d in (-1, 0, 1)),
    *b"1795296236471 \xd9\xa1\xd9\xa2 \xef\xbc\x91".split(),
]
UTF8 = [
    *"é žluť 語 \U0001f600".encode().split(),
    *(
        b"\x7f \xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xef\xbf\xbf "
        b"\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf \xef\xbb\xbf \xe2\x80\xa8"
    ).split(),
]
NOT_UTF8 = (
    b"\x80 \xbf \xff \xfe \xc0\x80 \xc1\xbf \xc2 \xc3( \xdf \xe0\x80\x80 \xe0\x9f\xbf "
    b"\xe1\x80 \xe1\x80( \xed\xa0\x80 \xed\xbf\xbf \xed\xa0\xbd\xed\xb8\x80 "
    b"\xf0\x80\x80\x80 \xf0\x8f\xbf\xbf \xf1\x80\x80 \xf4\x90\x80\x80 \xf5\x80\x80\x80 "
    b"\xf8\x88\x80\x80\x80 \xfc\x84\x80\x80\x80\x80"
).split()
ESCAPES = [
    b"\\\n",
    *(
        b'\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0061 \\u00e9 \\u0000 \\ud83d\\ude00 \\ud800 '
        b"\\udc00 \\ud800x \\ud800\\u0061 \\ud83d\\ud83d \\ude00\\ud83d \\u12 \\u \\uzzzz "
        b"\\U0061 \\x61 \\a \\v \\0 \\' \\ \\\x00 \\\xc3\xa9 \\\xff \\\\\\\""
    ).split(),
]
CONTROLS = [b"\x00", b"\x01", b"\t", b"\n", b"\r", b"\r\n", b"\x0b", b"\x0c", b"\x1f"]
INSIDE = [
    b"",
    b"a b",
    b"/* */",
    *b"a item17 ' { } [1] , : //".split(),
    b"x" * 1024,
    b"x" * 1025,
    "é".encode() * 512,
    "é".encode() * 512 + b"x",
    *UTF8,
    *NOT_UTF8,
    *ESCAPES,
    *CONTROLS,
    *(b"ab" + part + b"cd" for part in [*UTF8[:6], *NOT_UTF8, *ESCAPES, *CONTROLS]),
]
STRINGS = [b'"' + inside + b'"' for inside in INSIDE]
ODD = [
    b"",
    b" ",
    b"//\n1",
    b"\x0b1",
    b" \t\r\n1 \t\r\n",
    b'"a" "b"',
    *(
        b'" "a a" \'a\' a true false null True nul nulll tru truee t n f undefined /**/1 '
        b'\xc2\xa01 \xef\xbb\xbf1 1\x00 \x001 "a""b"'
    ).split(),
]
NESTED = [
    b"[ ]",
    b"{ }",
    b"[1 2]",
    b'["a" "b"]',
    b'[ "a" , "b" ]',
    b'{"a":1 "b":2}',
    b'{"a" 1}',
    b'{ "a" : 1 , "b" : 2 }',
    *(
        b"[] {} [ ] { } []] {}} [} {] [,] {,} [1,] [,1] [1,,2] [1] [[]] [[],[]] [[][]] [{}] "
        b'[{},[]] [{}{}] ["a"] ["a","b"] ["a","a"] ["a",] ["a";"b"] ["a",1] ["a",null] '
        b'["a",["b"]] ["a" ["a", ["a"} {"a":1} {"a":1,} {,"a":1} {"a":1,,"b":2} {"a":1;"b":2} '
        b'{"a"::1} {"a":} {"a"} {a:1} {\'a\':1} {1:1} {null:1} {"a":1 {"a":1] {"a":1,"a":2} '
        b'{"a":1,"b":3,"a":2} {"a":1,"\\u0061":2} {"":0} {"a":{}} {"a":[]} {"a":[{"b":[{}]}]} '
        b'{"a":{"b":{"c":[1,2,{"d":null}]}}} [1,"a",true,null,[{"x":-1.5}]]'
    ).split(),
    *(b"[" * n + b"]" * n for n in (31, 32, 33, 200, 511, 512, 1_500)),
    *(b'{"a":' * n + b"1" + b"}" * n for n in (31, 32, 33, 400)),
    *((b'[{"a":' * n + b"1" + b"}]" * n) for n in (15, 16, 17)),
    b"[" * 1_000,
    b"]" * 40,
    b'{"a":' * 300,
    *(
        b"{" + b",".join(b'"l%d":%d' % (i, i) for i in range(n)) + b"}"
        for n in (63, 64, 65, 100)
    ),
    *(b"[" + b",".join([b'"l"'] * n) + b"]" for n in (63, 64, 65, 300)),
]
VALUES = [*NUMBERS, *STRINGS, *ODD, *NESTED]

FIELDS = {
    b"key": b'"k1"',
    b"items": b'["item17","item3"]',
    b"ts": b"1795296236471",
    b"user": b'"ann"',
}


def record(**values: bytes) -> bytes:
    fields = FIELDS | {name.encode(): value for name, value in values.items()}
    return b"{" + b",".join(b'"%b":%b' % pair for pair in fields.items()) + b"}"


def single(values: bytes) -> list[bytes]:
    return [bytes([value]) for value in values]


def corpus() -> list[bytes]:
    """Return records that once broke some JSON reader, and some valid ones."""
    good = record()
    before = [
        b"\xef\xbb\xbf",
        b"/**/",
        b" \t\r\n",
        good,
        good + b"\n",
        *single(b'\x00\x0b\x1ex["'),
    ]
    behind = [b" \t\r\n", b"," + good, *single(b'\x00}]x\x0c\x1a",\n\xff')]
    odd = [
        good,
        *(part + good for part in before),
        *(good + part for part in behind),
        good.replace(b":", b"\n:\r "),
    ]
    odd += [
        b"[" + good + b"]",
        good.decode().encode("utf-16"),
        good.decode().encode("utf-32"),
    ]
    odd += [good + b" " * (MAX_BYTES - len(good) + more) for more in (0, 1)]
    for n in range(len(good)):
        odd += [good[:n], good[n:]]
        odd += [good[:n] + byte + good[n:] for byte in single(b' \n\x00\xff\\",')]
    for value in VALUES:
        odd += [record(**{name: value}) for name in (*NAMES, "x", "")]
        around = b'["a",%b]', b'{"a":%b}', b'{"a":1,"b":%b}'
        odd += [record(items=each % value) for each in around]
        odd += [record(x=b"[1,%b]" % value), record(x=b'{"a":%b}' % value), value]
    for inside in INSIDE:
        named = b'{"%b":1}' % inside
        odd += [named[:-1] + b"," + good[1:], record(items=named), record(x=named)]
    for name, value in FIELDS.items():
        again = b'"%b":%b' % (name, value)
        odd += [b"%b,%b}" % (good[:-1], more) for more in (again, b'"%b":null' % name)]
        odd.append(b"{" + again + b"," + good[1:])
        others = [name + more for more in (b"\\n", b"s", b"\x00")]
        others += [b"y", b"\\u00%02x" % name[0] + name[1:], name.upper(), name[:-1]]
        odd += [good.replace(b'"%b"' % name, b'"%b"' % other) for other in others]
        odd += [
            good.replace(b'"%b"' % name, name),
            good.replace(b'"%b"' % name, b"'%b'" % name),
        ]
    for names in ODD_NAMES:
        pairs = zip((name.encode() for name in names), FIELDS.values(), strict=True)
        whole = b"{" + b",".join(b'"%b":%b' % pair for pair in pairs) + b"}"
        odd += [
            whole,
            whole[:-1] + b',"%b":1}' % names[0].encode(),
            whole.replace(b"/", b"\\/"),
        ]
    return odd


# Tokens that a mutation inserts into a record.
TOKENS = [
    *NUMBERS,
    *STRINGS[:12],
    *ODD,
    *NESTED[:40],
    *UTF8,
    *NOT_UTF8,
    *ESCAPES,
    *CONTROLS,
    *(b'"%b":' % name for name in FIELDS),
    b'"x":',
    b'"":',
    *single(b' \t\n\r"\\{}[]:,0129.-+eEu/\x80\xc3\xed\xff'),
]
TOKENS = [token for token in TOKENS if len(token) < 200]
SPACES = [b""] * 30 + [b" ", b"  ", b"\t", b"\n", b"\r\n"]


class Generator:
    """Generator of mostly plain events of many shapes, and of mutations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, depth: int = 0) -> bytes:
        kind = self._random.random()
        choice = self._random.choice
        if kind < 0.3 or depth > 3:
            return choice(b'1 -2.5 true false null 0 "" "x" 12345'.split())
        if kind < 0.5:
            return choice(STRINGS[:8])
        inner = [self.value(depth + 1) for _ in range(self._random.randrange(4))]
        if kind < 0.7:
            return b"[%b]" % b",".join(inner)
        if kind < 0.9:
            return b"{%b}" % b",".join(
                choice(STRINGS[:8]) + b":" + each for each in inner
            )
        return choice(VALUES)

    def label(self) -> bytes:
        kind = self._random.random()
        if kind < 0.8:
            return b'"item%d"' % self._random.randrange(40)
        if kind < 0.97:
            return b'"' + self._random.choice(UTF8) + b'"'
        return self._random.choice(STRINGS)

    def items(self) -> bytes:
        kind = self._random.random()
        number = self._random.randrange(6)
        if kind < 0.2:
            return self.label()
        if kind < 0.6:
            return b"[" + b",".join(self.label() for _ in range(number)) + b"]"
        return (
            b"{"
            + b",".join(self.label() + b":" + self.whole(14) for _ in range(number))
            + b"}"
        )

    def whole(self, digits: int) -> bytes:
        return b"%d" % self._random.randrange(10 ** self._random.randrange(1, digits))

    def marks(self) -> list[bytes]:
        """Return a comma, a colon and nothing, each with spaces around."""
        choice = self._random.choice
        return [
            b"%b%b%b" % (choice(SPACES), mark, choice(SPACES))
            for mark in (b",", b":", b"")
        ]

    def event(self, names: Sequence[bytes]) -> bytes:
        draw = self._random.random
        choice = self._random.choice
        parts = [
            (names[0], self.label()),
            (names[1], self.items()),
            (names[2], self.whole(18)),
        ]
        parts.append((names[3], self.label() if draw() < 0.5 else self.whole(20)))
        for _ in range(choice((0, 0, 1, 2))):
            other = choice((b"x", b"", "é".encode(), b"extra", b"k", b"itemss"))
            parts.append((other, self.value()))
        if draw() < 0.5:
            self._random.shuffle(parts)
        comma, colon, around = self.marks()
        fields = comma.join(b'"%b"%b%b' % (name, colon, value) for name, value in parts)
        return b"%b{%b}%b" % (around, fields, around)

    def mutated(self, event: bytes, other: bytes) -> bytes:
        pick = self._random.randrange
        at = pick(len(event) + 1)
        to = min(len(event), at + 1 + pick(1 + pick(12)))
        kind = pick(9)
        if kind == 0 and at < len(event):
            return event[:at] + bytes([event[at] ^ 1 << pick(8)]) + event[at + 1 :]
        if kind == 1:
            return event[:at] + bytes([pick(256)]) + event[at + 1 :]
        if kind == 2:
            return event[:at] + event[to:]
        if kind == 3:
            return event[:to] + event[at:to] + event[to:]
        if kind == 4:
            return event[:at] + other[pick(len(other) + 1) :]
        if kind == 5:
            return event[: at if pick(4) == 0 else len(event)]
        if kind == 6:
            place = pick(len(other) + 1)
            return event[:at] + other[place : place + pick(20)] + event[at:]
        return (
            event[:at] + self._random.choice(TOKENS) + event[at if kind == 7 else to :]
        )

    def batch(self, names: Sequence[bytes], size: int) -> list[bytes]:
        """Return events: a third unchanged, the rest mutated up to four times."""
        bases = [self.event(names) for _ in range(size // 4 + 1)]
        return self.mutations(bases, size, (0, 0, 1, 1, 2, 4))

    def mutations(
        self, bases: list[bytes], size: int, times: Sequence[int]
    ) -> list[bytes]:
        """Return `size` of the events, each mutated one of these times."""
        found = []
        for _ in range(size):
            made = self._random.choice(bases)
            for _ in range(self._random.choice(times)):
                made = self.mutated(made, self._random.choice(bases))
            found.append(made)
        return found


def read_back(spans: Reading) -> list[Row]:
    """Return events as (record, time, stream key, user, labels, amounts)."""
    data = spans.data.tobytes()
    labels = [data[start:stop] for start, stop in spans.labels[0].tolist()]
    amounts = amounts_of(spans, 0)
    n = len(spans)
    keys, users = (
        [None] * n
        if column is None
        else [data[start:stop] for start, stop in column.tolist()]
        for column in (spans.keys[0], spans.users)
    )
    rows = []
    events = zip(spans.index.tolist(), spans.times.tolist(), keys, users, strict=True)
    for event, at, more in zip(events, spans.first[0], spans.number[0], strict=True):
        rows.append((*event, labels[at : at + more], amounts[at : at + more]))
    return rows


def difference(
    reader: EventReader, values: Sequence[bytes]
) -> tuple[str | None, int, int]:
    """Return the first record on which the scanner and reader differ, records scanned, and events."""
    keys = [None if i % 50 == 0 else value[: i % 7] for i, value in enumerate(values)]
    records = Records.of(values, keys, range(len(values)))
    fast = list(reader.read(records))
    slow = list(reader.read_general(records))
    scanned = len(values) - sum(spans.declined for spans in fast)
    events = sum(len(spans) for spans in slow)
    for spans in (*fast, *slow):
        if len(spans.labels[0]) != spans.number[0].sum():
            return "labels that belong to no event", scanned, events
    said = []
    for parts in (fast, slow):
        rows = [row for spans in parts for row in read_back(spans)]
        said.append((rows, [reject for spans in parts for reject in spans.rejects]))
    if said[0] == said[1]:
        return None, scanned, events
    by_record: list[dict[int, Row | Reject]] = [
        {row[0]: row for row in rows} | {reject.index: reject for reject in rejects}
        for rows, rejects in said
    ]
    for i, value in enumerate(values):
        with_it, without = (found.get(i) for found in by_record)
        if with_it != without:
            return (
                f"{value!r}: {with_it} with the scanner, {without} without",
                scanned,
                events,
            )
    return "the order of the rows", scanned, events


def mutations(records: int, seed: int) -> Iterator[tuple[EventReader, list[bytes]]]:
    """Yield batches, `records` records in total, with the reader for each batch."""
    generator = Generator(seed)
    makers = readers()
    done = 0
    names_of = [NAMES] * (len(makers) - len(ODD_NAMES)) + [*ODD_NAMES]
    while done < records:
        for reader, names in zip(makers, names_of, strict=True):
            size = min(BATCH, records - done)
            if size:
                yield reader, generator.batch([name.encode() for name in names], size)
            done += size


def compare(records: int, seed: int) -> Iterator[Compared]:
    for reader, values in mutations(records, seed):
        yield *difference(reader, values), len(values)


def long_run(compare: Callable[[int, int], Iterator[Compared]]) -> int:
    """Compare `--records` records from `--seed` on, and print the counts; 1 if any two differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    scanned = 0
    readable = 0
    records = 0
    for found, more_scanned, more_readable, more in compare(
        options.records, options.seed
    ):
        scanned = scanned + more_scanned
        readable = readable + more_readable
        records += more
        if found is not None:
            print(f"seed {options.seed}, after {records:,} records: {found}")
            return 1
    print(
        f"{records:,} records, seed {options.seed}, {time.monotonic() - begun:.0f} s: no difference; "
        f"{readable:,} could be read, the scanner read {scanned:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(long_run(compare))
