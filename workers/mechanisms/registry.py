"""Every mechanism by its name in the settings: its configuration class and its builder."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import structs

from workers.mechanisms.config.histogram import (
    HistogramConfig,
    KnownBaseConfig,
    UnkBaseConfig,
)
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import (
    MisraGriesConfig,
    make_misra_gries,
)
from workers.mechanisms.one_shot import config as one_shot
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.order_statistics import mechanisms as order
from workers.mechanisms.running.base import KnownBase, UnkBase
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb, SparseGumbConfig
from workers.runtime.frozen import check_frozen

_BUILDERS: Mapping[type[HistogramConfig], Callable[[Any, str], Mechanism]] = (
    MappingProxyType(
        {
            KnownBaseConfig: KnownBase,
            UnkBaseConfig: UnkBase,
            one_shot.MetaConfig: Meta,
            SparseGumbConfig: SparseGumb,
            order.BoundedMaxConfig: order.BoundedMax,
            order.DoublingConfig: order.Doubling,
            order.TwoLevelConfig: order.TwoLevel,
            order.TwoLevelKConfig: order.TwoLevel,
            MisraGriesConfig: make_misra_gries,
            one_shot.KnownGaussConfig: OneShot,
            one_shot.KnownGumbelConfig: OneShot,
            one_shot.UnkGaussConfig: OneShot,
            one_shot.LimitDomConfig: OneShot,
            one_shot.LimitDomLaplaceConfig: OneShot,
            one_shot.PositiveLaplaceConfig: OneShot,
            one_shot.PositiveGaussConfig: OneShot,
            one_shot.PayWhatYouGetConfig: PayWhatYouGet,
        }
    )
)

MECHANISMS: Mapping[str, type[HistogramConfig]] = MappingProxyType(
    {str(kind.__struct_config__.tag): kind for kind in _BUILDERS}
)

# Mechanisms whose cost is a sum over the items touched.
PER_ITEM = (
    "known_base",
    "unk_base",
    "known_gauss",
    "positive_gauss",
    "positive_laplace",
)


def protects_users(config: HistogramConfig) -> bool:
    """Return whether the analysis covers a user with items in different ticks.

    It does if the cost is a sum over the items touched: a user with m items in an epoch, each
    counted at most Dinf times, costs the same as one event with m items of Dinf, and discovery is
    charged for every tick that may hold part of an item (`ticks_of_item`). It does not if an event
    is charged once per release (top-k picks, shared thresholds): the user enters up to m releases.
    """
    algorithm = (
        config.algorithm
        if isinstance(config, one_shot.MetaConfig)
        else config.mechanism
    )
    return algorithm in PER_ITEM


def event_level(config: HistogramConfig, unit: str) -> HistogramConfig:
    """Return the event-level configuration that gives `unit` the protection it gives an event."""
    if unit == "event" or config.max_items_per_user is None:
        return config
    return structs.replace(config, max_items=config.max_items_per_user)


def build(config: HistogramConfig, unit: str = "event") -> Mechanism:
    """Build the frozen, thread-safe mechanism; `ValueError` names an unaffordable setting."""
    mechanism = _BUILDERS[type(config)](event_level(config, unit), unit)
    check_frozen(mechanism, mechanism.kind)
    return mechanism
