"""What is stored of a histogram's identity, and how a change of it is said."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

import msgspec

# Names in a description of what follows from settings: a message names those instead. So is a delta
# within something else.
DERIVED = frozenset(
    ("above", "column", "first", "intervals", "levels", "mu_scale", "noise", "scale", "scales", "sigma_squared", "sums",
     "tau_scale", "threshold", "update")
)  # fmt: skip
# What settings are called in a description, where that differs.
CALLED = MappingProxyType({"counter.horizon": "horizon", "counter.kind": "counter", "counter.radix": "radix"})

_NUMBER = re.compile(r"[0-9.]+(e-?[0-9]+)?", re.ASCII)


class Life(msgspec.Struct, kw_only=True):
    """The stored identity, position and price of one (histogram, generation).

    `deltas` are the named parts of delta that are not converted; older versions stored none.
    `reserved` is the last epoch that was charged before its first tick; only under a ceiling.
    `until` is the time, ms, up to which a generation that has ended may have published.
    """

    generation: int
    description: dict[str, object]
    first: int | None = None
    next: int | None = None
    epochs: int = 0
    rho: float
    epsilon: float
    delta: float
    unit: str
    deltas: dict[str, float] | None = None
    reserved: int | msgspec.UnsetType = msgspec.UNSET
    until: int | msgspec.UnsetType = msgspec.UNSET


def left_out(stored: Mapping[str, Life], names: Collection[str]) -> list[str]:
    """Return the histograms that the state has, and published, and that are not among `names`."""
    return [name for name, life in stored.items() if name not in names and life.next is not None]


def refusal_of_left_out(name: str) -> str:
    """Return what is said of a histogram that the state has and the settings do not."""
    return (
        f"histogram {name!r} is not in the settings any more, and its state is there: put it back, and it goes on where it "
        f"was, or end it for good: quietcount retire -c FILE {name}"
    )


def leaves(value: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the entries of a nested description, by dotted name."""
    for name, entry in value.items():
        if isinstance(entry, dict):
            yield from leaves(entry, f"{prefix}{name}.")
        else:
            yield prefix + name, entry


def short(value: object) -> str:
    """Return a value of a description as a message shows it."""
    text = msgspec.json.encode(value).decode()
    if isinstance(value, str) and _NUMBER.fullmatch(value):  # text, so that no digit is lost
        text = value
    return text if len(text) <= 60 else text[:57] + "..."
