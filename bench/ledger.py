"""The ledger alone, with many items: `python -m bench.ledger [--items N]`.

    new, again   nanoseconds to merge a row that has no row here yet, and one that has
    memory       bytes of resident memory an item, its label included; while it grows, and at the end
    blocks       nanoseconds a row to write the blocks of a commit
    recovery     items a second, from stored blocks to a ledger that goes on

Items come as messages of 100,000 rows; labels have 5 to 11 bytes.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions, Ledger
from workers.pipeline import ledger_blocks

MESSAGE_ROWS = 100_000
INDEX = np.zeros(1, dtype=np.int32)


def message(number: int) -> Contributions:
    """The rows of one message, the same at each call."""
    first = number * MESSAGE_ROWS
    rng = np.random.default_rng(number)
    tags = rng.integers(0, 2**64, size=(MESSAGE_ROWS, 2), dtype=np.uint64)
    labels = Texts.of(b"item%d" % i for i in range(first, first + MESSAGE_ROWS))
    counts = np.full(MESSAGE_ROWS, 1 + number, dtype=np.int64)
    return Contributions(
        ("shop",), np.zeros(MESSAGE_ROWS, dtype=np.int32), tags, labels, counts
    )


def resident(field: str = "VmRSS") -> int:
    """Bytes of memory of this process now, or at most (`VmHWM`); Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) << 10


def merged(ledger: Ledger, numbers: Iterator[int] | range) -> float:
    """Seconds to merge these messages."""
    spent = 0.0
    for number in numbers:
        part = message(number)
        begun = time.perf_counter()
        ledger.merge(part, INDEX, add_rows=True)
        spent += time.perf_counter() - begun
        ledger.counts_changed.clear()
    return spent


def table(items: int) -> None:
    """Prints the figures."""
    messages = max(1, items // MESSAGE_ROWS)
    items = messages * MESSAGE_ROWS
    merged(Ledger(), range(1))  # compiles
    ledger = Ledger()
    before = resident()
    new = merged(ledger, range(messages))
    held = resident() - before
    most = resident("VmHWM") - before
    again = merged(ledger, range(0, messages, 10))
    some = len(range(0, messages, 10)) * MESSAGE_ROWS
    print(f"\nledger of {items:,} items")
    print(f"  new {new / items * 1e9:.0f} ns, again {again / some * 1e9:.0f} ns a row")
    print(
        f"  memory {held / items:.0f} bytes an item, at most {most / items:.0f} while it grew",
        flush=True,
    )
    begun = time.perf_counter()
    ledger.counts_changed.append(np.arange(items))
    stored = sorted(ledger_blocks.changes(ledger))
    print(
        f"  blocks {(time.perf_counter() - begun) / items * 1e9:.0f} ns a row",
        flush=True,
    )
    del ledger
    before = resident()
    begun = time.perf_counter()
    again_there = ledger_blocks.load(stored, keys=1)
    spent = time.perf_counter() - begun
    print(
        f"  recovery {spent:.2f} s, {items / spent / 1e6:.1f} M items/s,"
        f" {(resident() - before) / items:.0f} bytes an item"
    )
    if (
        again_there.n != items
        or int(again_there.counts[-1]) != messages + (messages % 10 == 1) * messages
    ):
        raise RuntimeError("what was recovered is not what was stored")


def main() -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=10_000_000)
    table(parser.parse_args().items)


if __name__ == "__main__":
    main()
