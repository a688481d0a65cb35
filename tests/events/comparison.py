"""What all comparisons of readers over random records share: their outcome, and the long run."""

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Differs(Exception):
    """Two readers, or what was sent and what was answered, disagree."""


class Outcome(NamedTuple):
    """What a comparison found.

    Attributes:
        differs: the first record on which two readers differ, in words; None without any.
        readable, scanned: how many records could be read, and how many of them the scanner read.
    """

    differs: str | None
    readable: int = 0
    scanned: int = 0


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the sum of outcomes up to the first difference."""
    readable = 0
    scanned = 0
    for outcome in outcomes:
        readable += outcome.readable
        scanned += outcome.scanned
        if outcome.differs is not None:
            return Outcome(outcome.differs, readable, scanned)
    return Outcome(None, readable, scanned)


def long_run(*ways: Callable[[int, int], Outcome]) -> None:
    """Print what each comparison says of its share of the records; exit 1 at a difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1_000_000)
    options = parser.parse_args()
    for way in ways:
        outcome = way(options.records // len(ways), options.seed)
        print(f"seed {options.seed}: {outcome}")
        if outcome.differs is not None:
            sys.exit(1)
