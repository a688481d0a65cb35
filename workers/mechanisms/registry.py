"""Every mechanism by its name in the settings.

A mechanism is declared in its own module below `workers.mechanisms`: its configuration has `about`,
and its class lists the configurations that it is made from as `configs`. All modules there are
imported here, so a new one is found.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from msgspec import structs

from workers import mechanisms
from workers.mechanisms.about import About
from workers.mechanisms.config.histogram import (
    HistogramConfig,
    declared,
    subclasses,
)
from workers.mechanisms.mechanism import Mechanism
from workers.runtime.frozen import check_frozen

for _module in pkgutil.walk_packages(mechanisms.__path__, mechanisms.__name__ + "."):
    if _module.name != __name__:
        import_module(_module.name)
del _module


MECHANISMS: Mapping[str, type[HistogramConfig]] = MappingProxyType(declared())

# By the class's own `configs` alone: a subclass has those of its base class too.
_MADE_FROM: Mapping[type[HistogramConfig], type[Mechanism]] = MappingProxyType(
    {
        config: kind
        for kind in subclasses(Mechanism)
        for config in vars(kind).get("configs", ())
    }
)


def about(mechanism: str) -> About | None:
    """Return what a mechanism of this name is; None if this version does not know it."""
    config = MECHANISMS.get(mechanism)
    return None if config is None else config.about


def event_level(config: HistogramConfig, unit: str) -> HistogramConfig:
    """Return the event-level configuration that gives `unit` the protection it gives an event.

    A user with m items in an epoch costs as much as one event with m items (`protects_users`).
    """
    if unit == "event" or config.max_items_per_user is None:
        return config
    return structs.replace(config, max_items=config.max_items_per_user)


def build(config: HistogramConfig, unit: str = "event") -> Mechanism:
    """Build the frozen, thread-safe mechanism; `ValueError` names an unaffordable setting."""
    mechanism = _MADE_FROM[type(config)].make(event_level(config, unit), unit)
    check_frozen(mechanism, mechanism.kind)
    return mechanism
