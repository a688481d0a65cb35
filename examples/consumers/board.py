"""Prints a histogram's boards as they come: a plain confluent-kafka reader.

    python examples/consumers/board.py --topic orders.products --from-beginning --until-end

Each count stands with two standard deviations of its noise: the true count lies within them about 19 times in 20. Where the settings name
windows, each is followed by what changed in them, if by more than two standard deviations of the change: "+120 ± 94 in 1h, up 2".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from reading import Topic, add_options
from snapshots import (
    Change,
    Changes,
    NotASnapshot,
    Pages,
    Series,
    Snapshot,
    Step,
    printable,
)

UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def board(snapshot: Snapshot, top: int, changes: Sequence[Change] = ()) -> str:
    """A snapshot as lines of text."""
    until = datetime.fromtimestamp(snapshot.end / 1000, UTC).strftime(
        "%Y-%m-%d %H:%M:%S"
    )
    # Without epochs ticks are numbered from 1970 on, which says nothing.
    which = f"epoch {snapshot.epoch}, tick {snapshot.tick}, until"
    if snapshot.window is not None:
        which = f"the last {span_of(snapshot.window['ms'])}, until"
    lines = [f"{snapshot.histogram} / {printable(snapshot.key)}   {which} {until} UTC"]
    if snapshot.items is None:
        lines += [
            f"  {name}: {printable(json.dumps(value, ensure_ascii=False), 100)}"
            for name, value in snapshot.answer.items()
        ]
        return "\n".join(lines)
    error = f"± {2 * (snapshot.sd or 0):,.0f}"
    shown = snapshot.items[:top]
    labels = [label for label, _ in shown]
    for label, count in shown:
        # Windows that reach back to the epoch's start say the same there.
        texts = dict.fromkeys(
            said(change, snapshot, label, labels) for change in changes
        )
        changed = "; ".join(filter(None, texts))
        lines.append(
            f"  {count:>12,} {error:<9} {printable(label)}"
            + (f"   [{changed}]" if changed else "")
        )
    if len(snapshot.items) > top:
        lines.append(f"  and {len(snapshot.items) - top:,} more")
    if not snapshot.items:
        lines.append("  nothing that may be shown")
    return "\n".join(lines)


def said(change: Change, snapshot: Snapshot, label: str, shown: Sequence[str]) -> str:
    """What changed of an item over a window; empty where that is within the noise, or not known."""
    amount = change.clear(label)
    if amount is None:
        return ""
    whole = change.window.ticks != snapshot.tick
    span = f"in {span_of(change.window.ms)}" if whole else "since the epoch began"
    climbed = change.climbed(label, shown) if whole else 0
    rank = f", {'up' if climbed > 0 else 'down'} {abs(climbed)}" if climbed else ""
    return f"{amount:+,} ± {2 * change.window.sd:,.0f} {span}{rank}"


def span_of(milliseconds: int) -> str:
    """A window as the settings write it."""
    unit, width = next(one for one in UNITS if milliseconds % one[1] == 0)
    return f"{milliseconds // width}{unit}"


def heading(snapshot: Snapshot, step: Step, before: Snapshot | None) -> str:
    """Return remarks about a snapshot that does not simply follow the last one; empty if it does."""
    lines = (
        []
        if step in (Step.FIRST, Step.NEXT)
        else [f"-- {snapshot.histogram} / {printable(snapshot.key)}: {step.value}"]
    )
    if before is None or before.guarantee != snapshot.guarantee:
        lines.append(
            f"-- {snapshot.histogram} promises {snapshot.guarantee}, by {printable(snapshot.mechanism)}"
        )
    return "\n".join(lines)


def main() -> None:
    """Follows the topic."""
    parser = argparse.ArgumentParser(
        description="Prints the boards of a histogram topic."
    )
    add_options(parser)
    parser.add_argument(
        "--from-beginning", action="store_true", help="also what is there already"
    )
    parser.add_argument("--key", help="only this stream key")
    parser.add_argument(
        "--top",
        type=int,
        default=10,
        metavar="N",
        help="most items of a board (default: %(default)s)",
    )
    options = parser.parse_args()
    topic = Topic(options.bootstrap, options.topic, options.client)
    begin = (
        {partition: low for partition, (low, _) in topic.bounds.items()}
        if options.from_beginning
        else None
    )
    pages: defaultdict[int, Pages] = defaultdict(Pages)
    series = Series()
    changes = Changes()
    for batch in topic.batches(begin, until_end=options.until_end):
        for record in batch:
            snapshot = pages[record.partition].receive(record.value)
            if snapshot is None or options.key not in (None, snapshot.key):
                continue
            step, before = series.follow(snapshot)
            if step is not Step.AGAIN:
                text = board(snapshot, options.top, changes.receive(snapshot))
                print(
                    "\n".join(filter(None, (heading(snapshot, step, before), text))),
                    flush=True,
                )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            main()
        except NotASnapshot as error:
            sys.exit(str(error))
