"""UnkBase and KnownBase: a counter for every item of an unknown or a declared domain.

    D0       max_items    most items of one event that count
    Dinf     max_count    most that one event adds to one item
    rho      zCDP of the whole epoch; each item's counter gets rho / (D0 Dinf^2)
    m_t      threshold: an item is shown at t iff its noisy count is, or was, above m_t

The setting `threshold` decides which ticks may show a new item, and with which m_t (`discovery`).
Every present item is evaluated at every such tick, also without new events: skipping idle items is
another mechanism, which nobody has analysed. An item's noise is that of a counter from tick 1; the
cost is computed in `counters.counter.OnCounters`.

Source: paper 000 Alg. 2 (KnownBase), Alg. 3 and App. F (UnkBase, sticky), 004 Thm 11; UnkBase's
threshold per tick comes from the actual standard deviation at that tick, not a worst case.
"""

from collections.abc import Mapping

import numpy as np

from workers.arrays.number_blocks import find_shown
from workers.mechanisms.config.histogram import KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.counters.counter import OnCounters
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Noise, Release, State, short_hash
from workers.mechanisms.running.discovery import make_discovery


class UnkBase(OnCounters):
    """Running counts over an unknown domain.

    Guarantee: as `Budgeted`, also on streams that react to released values.
    """

    config: UnkBaseConfig

    def __init__(self, config: UnkBaseConfig, unit: str = "event") -> None:
        super().__init__(config, unit, discovers=True)
        delta = self.delta_discovery
        self._discovery = make_discovery(
            self._counter,
            config.max_items,
            config.max_count,
            delta,
            config.threshold,
            config.every,
        )

    def _parameters(self) -> Mapping[str, object]:
        return {
            "discovery": self._discovery.public(),
            "counter": self._counter.public(),
        }

    def threshold(self, t: int) -> int | None:
        return self._discovery.threshold(t) if self._discovery.discovers(t) else None

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        state.merge(contributions, add_rows=True)
        ledger = state.ledger
        threshold = self.threshold(t)
        new, rows, noisy = out = [np.empty(ledger.n, dtype=np.int64) for _ in range(3)]
        drawn = noise.at(t, ledger.tags)
        tests = threshold is not None
        fresh, both = find_shown(
            ledger.counts, drawn, ledger.shown, threshold or 0, tests, *out
        )
        if fresh:
            ledger.mark_shown(new[:fresh].copy(), t)
        found = rows[:both].copy(), noisy[:both].copy()
        return state, self.release(state, t, *found, threshold, noise)


class KnownBase(OnCounters):
    """Running counts of a declared domain, all shown at every tick; other items are never released.

    Needs no threshold: nothing depends on which items occur. Guarantee: as `Budgeted`.
    """

    config: KnownBaseConfig

    def __init__(self, config: KnownBaseConfig, unit: str = "event") -> None:
        super().__init__(config, unit, discovers=False)

    def _parameters(self) -> Mapping[str, object]:
        domain = short_hash(repr(sorted(self._domain)).encode())
        return {"counter": self._counter.public(), "domain": domain}

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        state.merge(contributions, add_rows=False)
        columns = state.ledger
        noisy = noise.at(t, columns.tags)
        noisy += columns.counts
        rows = np.arange(columns.n, dtype=np.int64)
        return state, self.release(state, t, rows, noisy, None, noise)
