"""Every mechanism by its name in the settings: its configuration, and what it builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.mechanisms.bounded_max import BoundedMax, BoundedMaxConfig
from workers.mechanisms.config import HistogramConfig, KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.doubling import Doubling, DoublingConfig
from workers.mechanisms.known_base import KnownBase
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.meta import Meta
from workers.mechanisms.misra_gries import MisraGries, MisraGriesConfig
from workers.mechanisms.one_shot_config import (
    KnownGaussConfig,
    KnownGumbelConfig,
    LimitDomConfig,
    LimitDomLaplaceConfig,
    MetaConfig,
    PayWhatYouGetConfig,
    PositiveGaussConfig,
    PositiveLaplaceConfig,
    UnkGaussConfig,
)
from workers.mechanisms.one_shot_mechanism import OneShot
from workers.mechanisms.pay import PayWhatYouGet
from workers.mechanisms.sparse_gumb import SparseGumb, SparseGumbConfig
from workers.mechanisms.two_level import TwoLevel, TwoLevelConfig, TwoLevelK, TwoLevelKConfig
from workers.mechanisms.unk_base import UnkBase

_BUILT_BY: dict[type[HistogramConfig], Callable[[Any, str], Mechanism]] = {
    KnownBaseConfig: KnownBase,
    UnkBaseConfig: UnkBase,
    MetaConfig: Meta,
    SparseGumbConfig: SparseGumb,
    BoundedMaxConfig: BoundedMax,
    DoublingConfig: Doubling,
    TwoLevelConfig: TwoLevel,
    TwoLevelKConfig: TwoLevelK,
    MisraGriesConfig: MisraGries,
    KnownGaussConfig: OneShot,
    KnownGumbelConfig: OneShot,
    UnkGaussConfig: OneShot,
    LimitDomConfig: OneShot,
    LimitDomLaplaceConfig: OneShot,
    PositiveLaplaceConfig: OneShot,
    PositiveGaussConfig: OneShot,
    PayWhatYouGetConfig: PayWhatYouGet,
}

MECHANISMS: dict[str, type[HistogramConfig]] = {str(kind.__struct_config__.tag): kind for kind in _BUILT_BY}


def build(config: HistogramConfig, unit: str = "event") -> Mechanism:
    """The mechanism that `config` describes.

    Args:
        config: of any of the kinds in `MECHANISMS`.
        unit: whose presence is hidden.

    Raises:
        ValueError: the budget cannot be met (the message names the setting).
    """
    return _BUILT_BY[type(config)](config, unit)
