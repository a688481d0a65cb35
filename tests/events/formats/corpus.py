"""What the random corpora of both binary formats share: trees, broken records, the comparison."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from tests.events.comparison import Outcome, together
from tests.events.formats.walking import content, expected, unordered
from workers.arrays.texts import readonly_contiguous
from workers.events.formats.fitting import SchemaFormat
from workers.events.log import DECLINED, scan_parts
from workers.events.tree import Node, Wanted, build

NAMES = ("a", "b", "c", "d", "e", "shop", "lines")
# Whether the value at a path has to be opened.
Paths = dict[tuple[tuple[str, ...], int | None], bool]


class Draw:
    #: What a byte of a broken record becomes, most often.
    BYTES: Sequence[int]

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def tree_of(self, paths: Paths) -> Node:
        """Return a tree of some paths; now and then one that the schema does not have."""
        draw = self.random
        taken = draw.sample(list(paths), min(len(paths), draw.randint(1, 5))) or [
            (("a",), None)
        ]
        # What is opened and looked into as well is the general reader's.
        opened = [
            steps
            for steps, at in taken
            if paths.get((steps, at)) and draw.random() < 0.9
        ]
        for steps in opened:
            taken = [
                p for p in taken if p[0][: len(steps)] != steps or p == (steps, None)
            ]
        if draw.random() < 0.1:
            taken.append((("a", "nowhere"), None))
        wanted = {path: slot for slot, path in enumerate(dict.fromkeys(taken))}
        found = []
        lists = dict[tuple[str, ...], int]()
        for (steps, at), slot in wanted.items():
            many = (draw.random() < 0.03) != paths.get((steps, at), draw.random() < 0.5)
            listed = (
                -1 if at is None else lists.setdefault(steps[:at], len(wanted) + slot)
            )
            found.append(Wanted(steps, at, slot, at is None and many, listed))
        return build(found)

    def broken(self, payload: bytes) -> bytes:
        """Return a record with a few bytes changed, lost or doubled."""
        draw = self.random
        made = bytearray(payload)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            at = draw.randrange(len(made) + 1)
            what = draw.random()
            if what < 0.5 and at < len(made):
                made[at] = (
                    draw.choice(self.BYTES)
                    if draw.random() < 0.6
                    else draw.randrange(256)
                )
            elif what < 0.65:
                del made[at : at + draw.randint(1, 4)]
            elif what < 0.8:
                long = b"\x80" * draw.randint(1, 11)
                made[at:at] = draw.choice((long, draw.randbytes(draw.randint(1, 4))))
            elif what < 0.9:
                made[at:at] = made[max(0, at - 4) : at]
            else:
                del made[at:]
        return bytes(made)


def difference(
    fmt: SchemaFormat[Any],
    number: int,
    tree: Node,
    payloads: Sequence[bytes],
    way: Any = None,
) -> Outcome:
    """Compare scanner and general reader; `way` replaces the compiled scanner."""
    lengths = np.array([len(payload) for payload in payloads], dtype=np.int64)
    stops = np.cumsum(lengths)
    values = readonly_contiguous(np.stack((stops - lengths, stops), axis=1))
    roots = readonly_contiguous(np.full(len(payloads), fmt.roots[number]))
    data = np.frombuffer(b"".join(payloads) + fmt.texts.tobytes(), dtype=np.uint8)
    scan = fmt.scanner(data, values, roots, int(stops[-1]))
    if way is not None:
        scan = partial(way, *scan.args)  # type: ignore[attr-defined]
    [logs] = scan_parts(values, lambda *to: (data, scan(*to)), lambda row: row)
    before = readable = scanned = 0
    for i, payload in enumerate(payloads):
        rows = logs.rows[before : logs.ends[i]]
        before = int(logs.ends[i])
        try:
            found = fmt.decode(number, payload)
        except ValueError:
            if logs.status[i] == 0:
                return Outcome(f"{payload!r}: scanned, though it cannot be decoded")
            continue
        readable += 1
        if logs.status[i] == DECLINED:
            continue
        scanned += 1
        # upb returns the entries of maps in an order of its own.
        said = unordered(content(rows, data))
        right = unordered(expected(found, tree))
        if said != right:
            return Outcome(f"{tree} {payload!r}: {said}, not {right}")
    return Outcome(None, readable, scanned)


class Case(NamedTuple):
    shown: str
    fmt: SchemaFormat[Any]
    number: int
    tree: Node
    payloads: list[bytes]


def run(
    make: Callable[[int, int], Case | int], records: int, seed: int, way: Any = None
) -> Outcome:
    """Compare over many schemas. `make(seed, good)` returns a case, or how many records it skips."""

    def outcomes() -> Iterator[Outcome]:
        left = records
        for number in count(seed):
            if left <= 0:
                return
            case = make(number, min(left, 20))
            if isinstance(case, int):
                left -= case
                continue
            left -= len(case.payloads)
            outcome = difference(case.fmt, case.number, case.tree, case.payloads, way)
            if outcome.differs is not None:
                shown = f"seed {number}: {case.shown}: {outcome.differs}"
                outcome = outcome._replace(differs=shown)
            yield outcome

    return together(outcomes())
