"""What reading an event costs, in nanoseconds.

    reader    the scanner, and the general reader for what it declines
    general   the general reader alone
    msgspec   its typed decoding alone, which holds the GIL; before the scanner, every event paid it

`python -m bench.json_reader [--records N] [--repeats N]`. Time is that of the thread, on one core:
others on the machine do not count. A figure is the best of the repeats. The target is 150 ns for
plain events; exit 1 where they miss it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import numpy as np

from tests.events.reading import read_general
from workers.events.reading import EventReader
from workers.kafka.records import Records
from workers.settings.settings import EventsSettings, shape_of

TARGET_NS = 150.0
SETTINGS = EventsSettings(topic="t", key="key", items="items", timestamp="ts")
USERS = msgspec.structs.replace(SETTINGS, user="user")


class Typed(msgspec.Struct, frozen=True, gc=False):
    """An event as msgspec decodes it."""

    key: str
    items: str | list[str] | dict[str, int]
    ts: int


_DECODER = msgspec.json.Decoder(Typed)


def cases(records: int) -> dict[str, tuple[EventReader, list[bytes]]]:
    """Return records of each kind, with the reader for them: 10,000 Zipf items, 10 stream keys."""
    rng = np.random.default_rng(7)
    weights = np.cumsum(1 / np.arange(1, 10_001) ** 1.05)
    items = np.searchsorted(weights / weights[-1], rng.random((records, 2))).tolist()
    keys = rng.integers(0, 10, records).tolist()
    rows = [
        (key, *two, 1795296236471 + i // 5)
        for i, (key, two) in enumerate(zip(keys, items, strict=True))
    ]
    reader = EventReader(shape_of(SETTINGS))
    users = EventReader(shape_of(USERS, "user"))
    plain = [b'{"key":"k%d","items":["item%d","item%d"],"ts":%d}' % row for row in rows]
    beyond = '{"key":"k%d","items":["položka%d","商品%d"],"ts":%d}'.encode()
    return {
        "plain": (reader, plain),
        "with spaces": (
            reader,
            [
                b'{"key": "k%d", "items": ["item%d", "item%d"], "ts": %d}' % row
                for row in rows
            ],
        ),
        "beyond ASCII": (reader, [beyond % row for row in rows]),
        "counts": (
            reader,
            [
                b'{"key":"k%d","items":{"item%d":1,"x%d":2},"ts":%d}' % row
                for row in rows
            ],
        ),
        "other fields": (
            reader,
            [
                b'{"id":"%032d","price":-12.5,"tags":[1,{"a":null}],' % i + each[1:]
                for i, each in enumerate(plain)
            ],
        ),
        "users": (
            users,
            [
                each[:-1] + b',"user":%d}' % (i % 100_000)
                for i, each in enumerate(plain)
            ],
        ),
        "1 % escaped": (
            reader,
            [
                each.replace(b'"item', b'"\\u0069tem') if i % 100 == 0 else each
                for i, each in enumerate(plain)
            ],
        ),
        "all escaped": (
            reader,
            [each.replace(b'["item', b'["\\u0069tem') for each in plain],
        ),
        "as ASCII": (
            reader,
            [json.dumps(json.loads(beyond % row)).encode() for row in rows],
        ),
        "other as ASCII": (
            reader,
            [
                b'{"m\\u011bsto":"\\u010cesk\\u00fd Krumlov","x":1e-7,' + each[1:]
                for each in plain
            ],
        ),
        "names twice": (reader, [each[:-1] + b',"ts":1}' for each in plain]),
    }


def _all(read: Callable[[Records], Iterable[object]], records: Records) -> list[object]:
    return list(read(records))


def decoded(values: list[bytes]) -> list[Typed]:
    """Decode the events with msgspec alone."""
    return list(map(_DECODER.decode, values))


def best(work: Callable[[], object], repeats: int) -> float:
    """Return the seconds of the fastest run."""
    times = []
    for _ in range(repeats):
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


def main() -> int:
    """Print a row for each kind of records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    plain_ns = 0.0
    print(
        f"{'ns an event':14} {'bytes':>6} {'reader':>8} {'general':>8} {'msgspec':>8} "
        f"{'declined':>9}"
    )
    for name, (reader, values) in cases(options.records).items():
        records = Records.of(values)
        # compiled here
        declined = sum(reading.declined for reading in reader.read(records))
        runs: tuple[Callable[[], object], ...] = (
            partial(_all, reader.read, records),
            partial(_all, partial(read_general, reader), records),
            partial(decoded, values),
        )
        read, general, typed = (
            best(run, options.repeats) / len(values) * 1e9 for run in runs
        )
        size = sum(map(len, values)) / len(values)
        print(
            f"{name:14} {size:6.0f} {read:8.0f} {general:8.0f} {typed:8.0f} "
            f"{declined / len(values):9.2%}"
        )
        plain_ns = read if name == "plain" else plain_ns
    print(f"plain: {plain_ns:.0f} ns, target {TARGET_NS:.0f} ns")
    return int(plain_ns > TARGET_NS)


if __name__ == "__main__":
    sys.exit(main())
