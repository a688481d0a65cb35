"""Every mechanism by its name in the settings.

A mechanism is declared in its own module: its configuration has `about`, and its class lists the
configurations that it is made from. Whoever adds one adds its module here.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import structs

from workers.mechanisms.about import About
from workers.mechanisms.config.histogram import HistogramConfig, declared
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries import misra_gries as _misra_gries
from workers.mechanisms.one_shot import one_shot as _one_shot
from workers.mechanisms.one_shot import pay as _pay
from workers.mechanisms.order_statistics import mechanisms as _order_statistics
from workers.mechanisms.running import base as _base
from workers.mechanisms.running import meta as _meta
from workers.mechanisms.running import sparse_gumb as _sparse_gumb
from workers.runtime.frozen import check_frozen

_MODULES = (
    _base,
    _sparse_gumb,
    _misra_gries,
    _meta,
    _one_shot,
    _pay,
    _order_statistics,
)

MECHANISMS: Mapping[str, type[HistogramConfig]] = MappingProxyType(declared())

_MADE_FROM: Mapping[type[HistogramConfig], type[Mechanism]] = MappingProxyType(
    {
        config: kind
        for module in _MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Mechanism)
        for config in vars(kind).get("configs", ())
    }
)


def about(mechanism: str) -> About | None:
    """Return what a mechanism of this name is; None if this version does not know it."""
    config = MECHANISMS.get(mechanism)
    return None if config is None else config.about


def event_level(config: HistogramConfig, unit: str) -> HistogramConfig:
    """Return the event-level configuration that gives `unit` the protection it gives an event."""
    if unit == "event" or config.max_items_per_user is None:
        return config
    return structs.replace(config, max_items=config.max_items_per_user)


def build(config: HistogramConfig, unit: str = "event") -> Mechanism:
    """Build the frozen, thread-safe mechanism; `ValueError` names an unaffordable setting."""
    mechanism = _MADE_FROM[type(config)].make(event_level(config, unit), unit)
    check_frozen(mechanism, mechanism.kind)
    return mechanism
