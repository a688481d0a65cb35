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
        items = enumerate(DOMAIN[: variant.max_items])
        return _steady(), [(first + 2 * i, {label: most}) for i, label in items]
    if variant.mechanism == "sparse_gumb":
        labels = DOMAIN[: variant.max_items]
        ever = -(-len(labels) // 3)
        stream = _each({label: 400 - 10 * i for i, label in enumerate(labels[:ever])})
        stream[4] = {NAME: dict.fromkeys(labels[ever : 2 * ever], 20_000)}
        stream[8] = {NAME: dict.fromkeys(labels[2 * ever :], 200_000)}
        return stream, [(first, dict.fromkeys(labels, most))]
    if variant.mechanism == "misra_gries":
        # A full sketch of large counters, then unknown items.
        order = sorted(DOMAIN, key=lambda label: KEY.tags(NAME, [label.encode()])[0].tolist())
        stream = _each({label: 500 - 10 * i for i, label in enumerate(order[:4])})
        # "pure": all four exceed the subtracted fifth of their sum: one more of some lowers the
        # others.
        places = {"pure": slice(variant.max_items), "pmg": slice(4, 4 + variant.max_items)}
        counted = order[places.get(str(variant.options["release"]), slice(4, 5))]
        return stream, [(2, dict.fromkeys(counted, most))]
    if str(variant) in _RATES:
        rate, tick = _RATES[str(variant)]
        counts = {"a": rate, "b": rate // 2}
        if "quantile" in str(variant):
            counts = dict.fromkeys(DOMAIN, rate)
        return _each(counts), [(tick, {"a": most, "b": most})]
    second = "c" if variant.options.get("kbar") == "private" else "b"
    return _steady(), [(first, {"a": most, second: most})]


def fourfold(events: Sequence[tuple[int, Histogram]]) -> list[tuple[int, Histogram]]:
    """Return the same with four times of everything, beyond every bound."""
    return [(tick, {label: 4 * n for label, n in items.items()}) for tick, items in events]


def _steady() -> list[Tick]:
    return _each({"a": 300, "b": 250, "c": 120, "d": 5, "e": 2}, {"a": 7, "x": 40})


def _each(*histograms: Histogram) -> list[Tick]:
    """Return the same tick every time: histograms by stream key."""
    return [dict(zip(KEYS, histograms, strict=False)) for _ in range(TICKS)]
