"""From a histogram's configuration to its mechanism."""

from __future__ import annotations

from workers.mechanisms.config import HistogramConfig, KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.known_base import KnownBase
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.unk_base import UnkBase


def build(config: HistogramConfig, unit: str = "event") -> Mechanism:
    """The mechanism that `config` describes.

    Args:
        config: of any of the kinds in `config.MECHANISMS`.
        unit: whose presence is hidden.

    Raises:
        ValueError: the budget cannot be met (the message names the setting).
    """
    if isinstance(config, UnkBaseConfig):
        return UnkBase(config, unit)
    if isinstance(config, KnownBaseConfig):
        return KnownBase(config, unit)
    raise ValueError(f"mechanism = {config.mechanism!r}: not built here")
