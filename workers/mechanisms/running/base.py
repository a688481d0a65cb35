"""UnkBase and KnownBase: a counter for every item of an unknown or a declared domain.

    D0       max_items    most items of one event that count
    Dinf     max_count    most that one event adds to one item
    rho      zCDP of the whole epoch; each item's counter gets rho / (D0 Dinf^2)
    m_t      threshold: an item is shown at t iff its noisy count is, or was, above m_t

The setting `threshold` decides which ticks may show a new item, and with which m_t (`discovery`).
Every present item is evaluated at every such tick, also without new events: skipping idle items is
another mechanism, which nobody has analysed. An item's noise is that of a counter from tick 1; the
cost is computed in `on_counters.OnCounters`.

An epoch of UnkBase begins with the labels whose last published count in the epoch before was above
CARRIED_SD times its standard deviation: they are shown from its first tick on, without a test
(docs/decisions/0036-windows-without-epochs.md, Windows over midnight). A smaller count cannot be
told from nothing; if these were kept too, no label would ever leave.

Source: Cardoso, Rogers, Alg. 2 (KnownBase), Alg. 3 and App. F (UnkBase, sticky); Rogers, Thm 11.
UnkBase's threshold per tick comes from the actual standard deviation at that tick, not a worst
case.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, structs

from workers.arrays.number_blocks import find_shown
from workers.arrays.tag_index import Rows
from workers.arrays.types import Codes
from workers.mechanisms.about import About, Bound, Data, Figure
from workers.mechanisms.bounds import normal_bound, normal_quantile
from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.counters.ranks import Ranked
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Mechanism, Noise, Release, State, short_hash
from workers.mechanisms.running.discovery import make_discovery
from workers.mechanisms.running.on_counters import OnCounters
from workers.mechanisms.running.unique import sliding_of

# Solving a constant threshold takes 1.1 s at this horizon (measured).
CONSTANT_HORIZON_MAX = 1 << 20
# And 0.1 s at this one, which is quick enough for a comparison.
QUICK_HORIZON_MAX = 1 << 16
# A label whose item had no event stays for another epoch with probability 0.023.
CARRIED_SD = 2
_EVERY = 'a whole number of ticks from 1 to 1,073,741,824, or a duration such as "1h"'


class KnownBaseConfig(HistogramConfig, frozen=True, kw_only=True, tag="known_base"):
    """Running counts of every declared label."""

    about = About(
        order_in_tables=10,
        family="running",
        text_in_plan="running counts of every declared label",
        text_on_dashboard="Every item of a list that was declared beforehand is shown.",
        counters="every",
        takes_end_share=True,
        takes_horizon_never=True,
        takes_sum=True,
        subtracts=True,
        whole_domain=True,
        has_quantiles=True,
        takes_for_quantiles=True,
        per_item=True,
        gaussian=True,
        in_ledger=True,
        plain=True,
    )

    domain: Domain


class UnkBaseConfig(HistogramConfig, frozen=True, kw_only=True, tag="unk_base"):
    """Items of an unknown domain above a noisy threshold.

    `threshold` "every" tests only at ticks n, 2n, ... of the setting `every` = n.
    """

    about = About(
        order_in_tables=20,
        family="running",
        text_in_plan="running counts of labels that passed the threshold",
        text_on_dashboard="An item is shown once its count, with noise, is beyond a limit.",
        threshold_rule="once",
        counters="steady",
        takes_end_share=True,
        takes_horizon_never=True,
        takes_sum=True,
        takes_total_share=True,
        subtracts=True,
        per_item=True,
        gaussian=True,
        in_ledger=True,
        plain=True,
    )

    threshold: Literal["per_tick", "constant", "every"] = "per_tick"
    every: Annotated[int, Meta(ge=1, le=2**30, description=_EVERY)] | None = None

    @property
    def discovery_step(self) -> int | None:
        return self.every

    def with_quick_thresholds(self) -> HistogramConfig:
        """Return these settings, changed so that comparing them is quick.

        Where solving for a constant threshold takes long, there is one for every tick instead.
        """
        # Without a horizon no threshold is constant: see `complaints`.
        slow = (self.horizon_ticks or 0) > QUICK_HORIZON_MAX
        if self.threshold == "constant" and slow:
            return structs.replace(self, threshold="per_tick")
        return self

    def other_schedules(self, ticks: int) -> Iterator[dict[str, Any]]:
        """Yield settings of the other schedules of tests, for comparisons."""
        if self.threshold != "per_tick":
            yield {"threshold": "per_tick"}
        solvable = self.horizon_ticks is not None and ticks <= QUICK_HORIZON_MAX
        if self.threshold != "constant" and solvable:
            yield {"threshold": "constant"}
        # A power of two near the root of the horizon: as many tests as ticks between them.
        every = 1 << max(0, (ticks.bit_length() - 1) // 2)
        if self.threshold != "every" and every > 1:
            yield {"threshold": "every", "every": every}

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with the settings `threshold` and `every` (None: not given)."""
        yield from super().complaints()
        # Without a horizon, ticks never end.
        if self.without_epochs and self.threshold != "per_tick":
            yield f'threshold = "{self.threshold}": with horizon = "never" only "per_tick"'
        ticks = self.horizon_ticks or math.inf
        if self.threshold == "constant" and ticks > CONSTANT_HORIZON_MAX:
            yield f'threshold = "constant": needs a horizon of at most {CONSTANT_HORIZON_MAX:,} ticks'
        if self.threshold == "every" and self.every is None:
            yield 'every is missing: threshold = "every" needs it, such as 64'
        if self.threshold != "every" and self.every is not None:
            yield f'every = {self.every}: only with threshold = "every"'
        if self.every is not None and self.every > ticks:
            yield f"every = {self.every}: no new item would ever be shown within horizon = {ticks}"


class UnkBase(OnCounters):
    """Running counts over an unknown domain.

    Guarantee: as `Budgeted`, also on streams that react to released values.
    """

    configs = (UnkBaseConfig,)
    config: UnkBaseConfig

    @classmethod
    def make(cls, config: HistogramConfig, unit: str) -> Mechanism:
        return sliding_of(config, unit) or super().make(config, unit)

    def __init__(self, config: UnkBaseConfig, unit: str = "event") -> None:
        """Make the counters that the budget pays for, and thresholds for the noise of counts."""
        super().__init__(config, unit, discovers=True)
        self._discovery = make_discovery(
            self._counter,
            config.max_items,
            config.max_count,
            self.delta_discovery,
            config.every,
            constant=config.threshold == "constant",
        )

    def _parameters(self) -> Mapping[str, object]:
        """Return what the mechanism's id depends on, beside what all mechanisms have."""
        return {
            "discovery": self._discovery.public(),
            "counter": self._counter.public(),
        }

    def threshold(self, t: int) -> int | None:
        return self._discovery.threshold(t) if self._discovery.discovers(t) else None

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Return the bound on noise, and for hidden items that plus the largest threshold."""
        assumes = f"at most {data.items:,} labels occur"
        source = "Cardoso, Rogers: Theorem 2, Lemma F.3"
        counts = _bound_of_counts(self, data.items, beta, data, assumes, source)
        # The bound on noise, plus what a threshold may hide.
        hidden = counts.ours + self._worst_threshold(self._ticks(data))
        text = "true count of an item not shown, at every tick that may show new items"
        source = "Cardoso, Rogers: Theorem 6, Lemma F.2"
        return counts, Bound("hidden", text, assumes, beta, hidden, source)

    def _worst_threshold(self, ticks: int) -> float:
        """Bound every m_t of `discovery`, from the largest variance and the smallest delta_t."""
        config = self.config
        if config.threshold == "constant":
            # The same at every tick, and never None.
            return self.threshold(1) or 0
        tests = max(1, ticks // (config.every or 1))
        delta = self.delta_discovery / config.max_items
        # The logarithm of `delta` / delta_t at the last test, whose delta_t is the smallest.
        if config.horizon_ticks is not None:
            log_ratio = math.log(tests)
        else:
            octave = tests.bit_length() - 1
            log_ratio = math.log(math.pi**2 / 6) + 2 * math.log(1 + octave)
            log_ratio += octave * math.log(2)
        # 1e-9: more than the rounding of delta_t and of this sum.
        tail = normal_quantile(math.exp(math.log(delta) - log_ratio - 1e-9))
        worst = self.worst_variance(ticks)
        # m_t is at most q s_t + Dinf - 1/2, rounded up.
        return config.max_count + 0.5 + tail * math.sqrt(worst)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        if every := self.config.every:
            meaning = "new items are shown only at multiples of this tick"
            yield Figure("every", float(every), meaning)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        """Count a tick, test hidden items if it is a tick of tests, and release those shown."""
        state.merge(contributions, add_rows=True)
        ledger = state.ledger
        threshold = self.threshold(t)
        drawn = noise.at(t, ledger.tags)
        # For the kernel to fill: rows newly shown, all rows shown, and their noisy counts.
        new = np.empty(ledger.n, dtype=np.int64)
        rows = np.empty(ledger.n, dtype=np.int64)
        noisy = np.empty(ledger.n, dtype=np.int64)
        # At ticks that test nothing it is None, and the kernel ignores the number that it gets.
        tests = threshold is not None
        newly_shown, shown = find_shown(
            ledger.counts, drawn, ledger.shown, threshold or 0, tests, new, rows, noisy
        )
        if newly_shown:
            ledger.mark_shown(new[:newly_shown].copy(), t)
        # Copies: the buffers are as long as the ledger.
        rows = rows[:shown].copy()
        noisy = noisy[:shown].copy()
        return state, self.release(state, t, rows, noisy, threshold, noise)

    def carry(
        self, last: State, t: int, noise: Noise, state: State, keys: Codes
    ) -> Rows:
        """Begin an epoch with the labels of large published counts: see the module.

        `last` is the state after tick t, the last of the epoch before, and `noise` that epoch's;
        `keys` has the index in the new `state` of each of its stream keys, -1 where it has none.
        Return the new rows, which are shown from the new epoch's tick 1 on.
        """
        # Counts as the epoch before published them at its last tick: exact counts plus noise.
        ledger = last.ledger
        shown = np.flatnonzero(ledger.shown)
        tags = ledger.tags.take(shown, axis=0)
        noisy = ledger.counts[shown] + noise.at(t, tags)
        new_keys = keys[ledger.keys[shown]]
        stays = np.flatnonzero((noisy > CARRIED_SD * self.sd(t)) & (new_keys >= 0))
        labels = ledger.label_column(0, ledger.n).take(shown[stays])
        carried = state.ledger.append(tags.take(stays, axis=0), new_keys[stays], labels)
        state.ledger.mark_shown(carried, 1)
        return carried


class KnownBase(OnCounters):
    """Running counts of a declared domain, all shown at every tick; other items are never released.

    Needs no threshold: nothing depends on which items occur. Guarantee: as `Budgeted`.
    """

    configs = (KnownBaseConfig,)
    config: KnownBaseConfig

    @classmethod
    def make(cls, config: HistogramConfig, unit: str) -> Mechanism:
        return sliding_of(config, unit) or super().make(config, unit)

    def __init__(self, config: KnownBaseConfig, unit: str = "event") -> None:
        super().__init__(config, unit, discovers=False)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        labels = len(self._domain)
        source = "Cardoso, Rogers: Theorem 2"
        return (_bound_of_counts(self, labels, beta, data, assumes="", source=source),)

    def _parameters(self) -> Mapping[str, object]:
        domain = short_hash(repr(sorted(self._domain)).encode())
        return {"counter": self._counter.public(), "domain": domain}

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        """Count a tick of declared labels (others get no row), and release all of them."""
        state.merge(contributions, add_rows=False)
        ledger = state.ledger
        # The noise of ranks is drawn for stream keys, whose rows are in the order of the domain.
        ranks = isinstance(self._counter, Ranked)
        noisy = noise.at(t, state.key_tags if ranks else ledger.tags)
        noisy += ledger.counts
        rows = np.arange(ledger.n, dtype=np.int64)
        # None: there is no threshold.
        return state, self.release(state, t, rows, noisy, None, noise)


def _bound_of_counts(
    mechanism: OnCounters,
    labels: int,
    beta: float,
    data: Data,
    assumes: str,
    source: str,
) -> Bound:
    """Bound the noise of all labels at all ticks, from the counter's worst variance.

    `assumes` (empty: nothing) and `source` are texts for people.
    """
    # Without a horizon, those of the data.
    ticks = mechanism.config.horizon_ticks or data.ticks
    worst = mechanism.worst_variance(ticks)
    # A bucket is the difference of two rounded ranks.
    rounding = 1.0 if mechanism.config.ranks else 0.5
    error = normal_bound(worst, labels * ticks, beta) + rounding
    text = f"error of every count shown, over {labels:,} labels and {ticks:,} ticks"
    return Bound("counts", text, assumes, beta, error, source)
