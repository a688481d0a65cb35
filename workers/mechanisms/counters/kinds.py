"""The kinds of counter by their names in the settings, and which of them a mechanism takes.

A counter gives the noise of one item's running sum at every tick. It is stateless: the noise of
(item, t) is a function of the key, so every item uses the counter that started at tick 1. A counter
that started when the item first occurred would reveal that tick, which is data.

A kind is one file of this folder: a subclass of `Counter` that says what it is (`base`). All files
here are imported, so a new one is found, and settings, plans and documents read it. A mechanism
says in its `about.counters` which kinds it takes: "every" one; "steady", those that keep equally
much of a row at every tick; "tree" alone; "" none.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from workers.mechanisms import counters
from workers.mechanisms.about import About
from workers.mechanisms.counters.base import Counter
from workers.runtime.frozen import memoized

for _module in pkgutil.iter_modules(counters.__path__, counters.__name__ + "."):
    if _module.name != __name__:
        import_module(_module.name)
del _module


def _in_order() -> Iterator[tuple[str, type[Counter]]]:
    """Yield the kinds that a setting can name, with their names, the default first."""
    # `order` is None where no setting names the kind.
    by_order = {
        kind.order: kind for kind in Counter.__subclasses__() if kind.order is not None
    }
    for _, kind in sorted(by_order.items()):
        yield kind.kind, kind


# The first is the default.
KINDS: Mapping[str, type[Counter]] = MappingProxyType(dict(_in_order()))


def kinds_of(about: About) -> list[str]:
    """Return the names of the kinds that a mechanism takes."""
    if about.counters == "tree":
        return ["tree"]
    return [
        name
        for name, kind in KINDS.items()
        if about.counters == "every" or (about.counters == "steady" and not kind.grows)
    ]


def kinds_with(setting: str) -> str:
    """Return the kinds that take a setting, as an error names them."""
    takers = (name for name, kind in KINDS.items() if setting in kind.takes)
    return "counter = " + " or ".join(f'"{name}"' for name in takers)


@memoized(512)
def make_counter(
    kind: str,
    horizon: int | None,
    rho_item: float,
    radix: int | None = None,
    end_share: float | None = None,
) -> Counter:
    """Return a counter that costs at most rho_item an item; equal arguments, the same object.

    `horizon` is in ticks, None if endless. A `radix` or `end_share` of None is the kind's default.
    Raises ValueError for any other value if the kind does not take the setting (`Counter.takes`).
    """
    if kind not in KINDS:
        raise ValueError(f"counter = {kind!r}: must be one of {', '.join(KINDS)}")
    settings = {"radix": radix, "end_share": end_share}
    takes = KINDS[kind].takes
    for setting, value in settings.items():
        if value is not None and setting not in takes:
            raise ValueError(f"{setting} = {value}: only with {kinds_with(setting)}")
    # A kind's arguments after these two are its settings, in the order of `takes`.
    arguments: list[Any] = [settings[setting] for setting in takes]
    return KINDS[kind](horizon, rho_item, *arguments)
