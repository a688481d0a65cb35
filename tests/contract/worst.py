"""A nearly worst-case stream and event for every variant, to compare with its stated cost."""

from __future__ import annotations

from collections.abc import Sequence

from tests.contract.stage import KEY, KEYS, Histogram, Tick
from tests.contract.variants import DOMAIN, TICKS, Variant

NAME = KEYS[0]
# Counts per tick, and the event's tick: an interval closes before the event's segment ends, and
# most of a counter is used.
_RATES = {
    "bounded_max-tree": (100, 1),
    "bounded_max-quantile": (100, 5),
    "two_level-haar": (15, 1),
    "two_level-tree": (40, 1),
    "two_level_k-haar": (25, 1),
    "two_level_k-histogram": (25, 1),
    "two_level_k-tree": (100, 7),
}


def worst(variant: Variant) -> tuple[list[Tick], list[tuple[int, Histogram]]]:
    """Return a stream of TICKS ticks, and the neighbour's events (one, or those of one user)."""
    most = variant.max_count
    # If a tree begins before tick 1, no tick shows tick 1 apart from those before it.
    first = 2 if "end_share" in variant.options else 1
    if variant.unit == "user":
        return _steady(), [
            (first + 2 * i, {label: most}) for i, label in enumerate(DOMAIN[: variant.max_items])
        ]
    if variant.mechanism == "sparse_gumb":
        items = DOMAIN[: variant.max_items]
        ever = -(-len(items) // 3)
        stream: list[Tick] = [
            {NAME: {label: 400 - 10 * i for i, label in enumerate(items[:ever])}}
            for _ in range(TICKS)
        ]
        stream[4] = {NAME: dict.fromkeys(items[ever : 2 * ever], 20_000)}
        stream[8] = {NAME: dict.fromkeys(items[2 * ever :], 200_000)}
        return stream, [(first, dict.fromkeys(items, most))]
    if variant.mechanism == "misra_gries":
        # A full sketch of large counters, then unknown items.
        labels = sorted(DOMAIN, key=lambda label: KEY.tags(NAME, [label.encode()])[0].tolist())
        heavy = {label: 500 - 10 * i for i, label in enumerate(labels[:4])}
        if variant.options["release"] == "pure":
            # All four exceed the subtracted fifth of their sum: one more of some lowers the others.
            return [{NAME: heavy} for _ in range(TICKS)], [
                (2, dict.fromkeys(labels[: variant.max_items], most))
            ]
        strangers = (
            labels[4 : 4 + variant.max_items]
            if variant.options["release"] == "pmg"
            else labels[4:5]
        )
        return [{NAME: heavy} for _ in range(TICKS)], [(2, dict.fromkeys(strangers, most))]
    if str(variant) in _RATES:
        rate, tick = _RATES[str(variant)]
        whom = (
            dict.fromkeys(DOMAIN, rate)
            if "quantile" in str(variant)
            else {"a": rate, "b": rate // 2}
        )
        return [{NAME: whom} for _ in range(TICKS)], [(tick, {"a": most, "b": most})]
    second = "c" if variant.options.get("kbar") == "private" else "b"
    return _steady(), [(first, {"a": most, second: most})]


def fourfold(events: Sequence[tuple[int, Histogram]]) -> list[tuple[int, Histogram]]:
    """Return the same with four times of everything, beyond every bound."""
    return [(tick, {label: 4 * n for label, n in items.items()}) for tick, items in events]


def _steady() -> list[Tick]:
    return [
        {NAME: {"a": 300, "b": 250, "c": 120, "d": 5, "e": 2}, KEYS[1]: {"a": 7, "x": 40}}
        for _ in range(TICKS)
    ]
