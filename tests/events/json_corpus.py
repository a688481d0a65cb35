"""The one corpus of JSON: hostile bytes, and records at random along a tree of wanted paths.

Every test of a JSON reader takes its bytes from here: `json_log_corpus` compares the scanner's logs
with Python's reader, `shapes_corpus` events with the reference, `tests.fuzz` mutates them further.
"""

import json
import random
from collections.abc import Sequence

from workers.events.tree import NO_SLOT, Node, Wanted, build

# The longest record of the corpus.
MAX_BYTES = 4_000
NAMES = ("key", "items", "ts", "user")

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
    """Generator of mostly valid records, and of values at any place."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> bytes:
        kind = self.random.random()
        choice = self.random.choice
        if kind < 0.3 or depth > 3:
            return choice(b'1 -2.5 true false null 0 "" "x" 12345'.split())
        if kind < 0.5:
            return choice(STRINGS[:8])
        inner = [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if kind < 0.7:
            return b"[%b]" % b",".join(inner)
        if kind < 0.9:
            named = (choice(STRINGS[:8]) + b":" + each for each in inner)
            return b"{%b}" % b",".join(named)
        return choice(VALUES)

    def items(self) -> bytes:
        kind = self.random.random()
        labels = [self.label() for _ in range(self.random.randrange(6))]
        if kind < 0.2:
            return self.label()
        if kind < 0.6:
            return b"[%b]" % b",".join(labels)
        counts = (label + b":" + self.whole(14) for label in labels)
        return b"{%b}" % b",".join(counts)

    def whole(self, digits: int) -> bytes:
        return b"%d" % self.random.randrange(10 ** self.random.randrange(1, digits))

    def object(self, node: Node) -> bytes:
        """Return an object with most of the wanted fields and some others."""
        draw = self.random.random
        choice = self.random.choice
        names = list(node.children)
        if len(names) > 12:
            names = self.random.sample(names, 5)
        parts = [
            (name.encode(), self.at(node.children[name]))
            for name in names
            if draw() < 0.85
        ]
        for _ in range(choice((0, 0, 1, 2))):
            known = [name.encode() for name in names[:2]]
            parts.append(
                (choice((b"x", b"xs", b"ke", b"field95", *known)), self.value())
            )
        if draw() < 0.3:
            self.random.shuffle(parts)
        comma, colon, around = (
            choice(SPACES) + mark + choice(SPACES) for mark in (b",", b":", b"")
        )
        quoted = (self.quoted(name.decode()) for name, _ in parts)
        fields = [
            name + colon + value for name, (_, value) in zip(quoted, parts, strict=True)
        ]
        return b"{%b%b}%b" % (around, comma.join(fields), around)

    def at(self, node: Node) -> bytes:
        """Return a valid value for a node, sometimes null, and sometimes any value."""
        kind = self.random.random()
        if kind < 0.03:
            return b"null"
        if kind < 0.05:
            return self.value()
        if node.children and (node.elements is None or kind < 0.5):
            return self.object(node)
        if node.elements is not None:
            number = self.random.choice((0, 1, 2, 2, 3, 9))
            return b"[%b]" % b",".join(self.at(node.elements) for _ in range(number))
        return self.items() if node.many else self.scalar()

    def quoted(self, text: str) -> bytes:
        """Return a string literal: unescaped, in ASCII, or with random escapes."""
        kind = self.random.random()
        if kind < 0.93:
            return json.dumps(text, ensure_ascii=kind > 0.9).encode()
        choice = self.random.choice
        digits = self.random.choice("xX")
        parts = []
        for each in text:
            units = memoryview(each.encode("utf-16-le")).cast("H")
            plain, short = (
                json.dumps(each, ensure_ascii=ascii)[1:-1] for ascii in (False, True)
            )
            parts.append(
                choice(
                    (plain, short, "".join(f"\\u{unit:04{digits}}" for unit in units))
                )
            )
        return f'"{"".join(parts)}"'.encode()

    def label(self) -> bytes:
        kind = self.random.random()
        made = b'"item%d"' % self.random.randrange(40)
        if kind > 0.97:
            made = self.random.choice(STRINGS)
        elif kind > 0.8:
            made = b'"' + self.random.choice(UTF8) + b'"'
        try:
            return made if kind < 0.7 else self.quoted(json.loads(made))
        except ValueError:  # it is not JSON, or half a surrogate pair
            return made

    def scalar(self) -> bytes:
        pick = self.random.randrange
        kind = self.random.random()
        if kind < 0.4:
            return self.label()
        if kind < 0.7:
            return b"%d" % (pick(10 ** pick(1, 20)) * self.random.choice((1, 1, -1)))
        if kind < 0.85:
            return b"%d.%d" % (pick(10 ** pick(1, 17)), pick(10 ** pick(1, 17)))
        if kind < 0.9:
            point = b".%d" % pick(10 ** pick(1, 17)) if pick(2) else b""
            mark = self.random.choice((b"e", b"E", b"e+", b"E-", b"e-", b"E+"))
            return b"%d%b%b%d" % (pick(10 ** pick(1, 17)), point, mark, pick(120))
        return self.random.choice(
            (b"true", b"false", b"null", b"0", b"1e5", b"-0", b"{}", b"[]")
        )


def tree(*paths: str, many: Sequence[str] = ()) -> Node:
    """Return the tree of paths without quoted names, in slot order; list slots start at 1,000."""
    lists: dict[str, int] = {}
    wanted = []
    for slot, path in enumerate(paths):
        before, brackets, _ = path.partition("[]")
        at = before.count(".") + 1 if brackets else None
        listed = lists.setdefault(before, 1_000 + len(lists)) if brackets else NO_SLOT
        wanted.append(
            Wanted(
                tuple(path.replace("[]", "").split(".")), at, slot, path in many, listed
            )
        )
    return build(wanted)


DOTTED = build(
    [
        Wanted(("shop.name", '"'), None, 0),
        Wanted(("order", "a[]", "é"), 2, 1, False, 2),
        Wanted(("order.a[]",), None, 3),
    ]
)
TREES = {
    "flat": tree("key", "items", "ts", "user", many=["items"]),
    "nested": tree(
        "order.lines[].sku", "order.lines[].qty", "order.id", "order.shop.name", "ts"
    ),
    "lists": tree("tags[]", "a.b[]", "meta", "meta2.x", many=["meta"]),
    "itself and within": tree(
        "order",
        "order.id",
        "order.lines",
        "order.lines[].sku",
        "order.lines[].sku.x",
        "ts",
    ),
    "several": tree("m", "m.x", "l", "l[].y", "b.c", "b[].c", "ts", many=["m", "l"]),
    "prefixes": tree(
        "i",
        "it",
        "ite",
        "item",
        "items",
        "smeti",
        "é",
        "žluťoučký",
        "\x7f",
        "",
        "a b",
        many=["items"],
    ),
    "names as no TOML has them": DOTTED,
    "many fields": tree(
        *(f"field{i}" for i in range(90)), *(f"in.f{i}.x" for i in range(70))
    ),
    "deep": tree(".".join("abcdefghijklmnop"), "a.b.c.d[].e.f.g"),
}
