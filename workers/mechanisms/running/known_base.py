"""KnownBase: a counter for every item of a declared domain, all shown at every tick.

Source: paper 000 Alg. 2, with the counter of the configuration (000's tree, or haar).

    D0    max_items    most items of one event that count
    Dinf  max_count    most that one event adds to one item
    rho   zCDP of the whole epoch; each item's counter gets rho / (D0 Dinf^2)

Items outside the domain are never released. No threshold is needed, since nothing depends on which
items occur.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from workers.mechanisms.config.histogram import KnownBaseConfig
from workers.mechanisms.counters.counter import OnCounters
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Domained, Noise, Release, State, head


class KnownBase(OnCounters, Domained):
    """Running counts of a declared domain.

    Guarantee: rho-zCDP, and (epsilon, delta) by one conversion, for the content of one event, over
    all ticks of an epoch together.
    """

    kind = "known_base"

    def __init__(self, config: KnownBaseConfig, unit: str = "event") -> None:
        self.config = config
        self._domain = tuple(label.encode() for label in config.domain)
        super().__init__(config, unit, discovers=False)

    def public(self) -> Mapping[str, object]:
        domain = repr(sorted(self._domain)).encode()
        return {
            **head(self.kind, self.config, self.guarantee),
            "counter": self._counter.public(),
            "domain": hashlib.blake2b(domain, digest_size=16).hexdigest(),
        }

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        state.merge(contributions, add_rows=False)
        columns = state.ledger
        noisy = noise.at(t, columns.tags)
        noisy += columns.counts
        return state, Release(np.arange(columns.n, dtype=np.int64), noisy, self.sd(t), None)
