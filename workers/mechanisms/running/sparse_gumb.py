"""SparseGumb: the k most frequent items of a declared domain, reselected at most s times.

Source: Cardoso, Rogers, Alg. 8 and Theorem 4. Corrected: its inner loop never ends while nothing is
above (here: one test a tick), and its Sparse Vector term is charged 2/tau^2 (here: "accounting").

    k        top_k        items shown of each stream key
    s        switches     most reselections of the shown items
    Dinf     max_count    most that one event adds to one item, however many items it touches
    tau^2    kappa Dinf^2 / rho, kappa = k + 1/8 (accounting "tight") or k + 2 ("paper")
    tau_1    sqrt(s) tau: threshold noise of scale b_1 = 2 tau_1, test noise of scale b_2 = 4 tau_1
    tau_2    sqrt(s + 1) tau: counters of rho_item = 1 / (2 tau_2^2); picks by Gumbel noise of scale
             b = tau_2 / 2
    eta_t    eta, or the default ceil(2 sd(t) + b_2 ln(d (t + 1))), d the size of the domain
    Y, Z     one-sided geometric noise of scale b_2, b_1 ("tight"); discrete Laplace ("paper")

Tick 1 of a stream key chooses k items by the exponential mechanism. Every later tick, until the
switches are used, tests whether an item outside has count + Y > m + eta_t + Z, m the least
published count inside. If so, it chooses k items again, uses a switch and redraws Z.

Cost, each term once for the whole epoch, the content of one event emptied or the reverse (counts
move one way, by 0..Dinf):
    counters   k Dinf^2 / (2 tau^2): at most k (s + 1) items are ever shown, Dinf^2 rho_item each
    picks      k Dinf^2 / (2 tau^2): k (s + 1), each (Dinf / b)-bounded range
    tests      Dinf^2 / (8 tau^2): at most s, each stopping time (e_1 + 2 e_2)-bounded range,
               e_i = Dinf / b_i
The tests: let P be the chance of stopping at a given tick, P' with the event. Larger counts stop
earlier: P' <= e^e_2 P, from the stopping test alone; with Z moved by Dinf, every earlier test
passes as often and the last at least e^-e_2 as often: P' >= e^-(e_1 + e_2) P. (Never stopping:
between e^-e_1 and 1.) The loss lies in an interval of length e_1 + 2 e_2. All this holds for
geometric noise on 0, 1, ... too: P(Y > x - 1) <= e^(1/b) P(Y > x), and
P(Z = z) e^(-1/b) = P(Z = z + 1) for z >= 0. eps-bounded range is eps^2/8 zCDP.

State block "m<key>" per stream key: version (1 byte), 2; switches used and number of chosen items
(uint32 each); the chosen places in the domain in the order picked (uint32 each).

Noise cells (upper halves of the counters' cells stay below 2^16):
    (0x20 << 56, t)       of a row: the noise of its test at tick t
    (0x21 << 56, n)       of a stream key: the noise of the test's threshold after n switches
    (0x22 << 56 | i, n)   of a stream key: the word of pick i of choice n = 0, 1, ...
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from workers.arrays.tag_index import Rows
from workers.arrays.types import Codes, Longs, Tags
from workers.mechanisms.about import (
    About,
    Bound,
    Data,
    Figure,
    RowBytes,
    pick_figures,
)
from workers.mechanisms.accounting import float_up
from workers.mechanisms.bounds import laplace_bound, normal_bound
from workers.mechanisms.config.checked import display
from workers.mechanisms.config.histogram import (
    COMPARED_TOP_K,
    Count,
    HistogramConfig,
    Label,
    most_shown_by,
)
from workers.mechanisms.counters.base import LONGEST_HORIZON, Counter
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import (
    Noise,
    Release,
    State,
    body_of,
    expect_type,
    short_hash,
    unknown_block,
)
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise.discrete_laplace import (
    DiscreteLaplace,
    Geometric,
    round_up_scale,
)
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.selection import (
    SELECTION_VERSION,
    gumbel_top_k,
    selection_tv,
)
from workers.mechanisms.running.on_counters import CounterMechanism, counter_of
from workers.runtime.errors import StateRefused

# 2: includes the number of chosen items, so that truncated blocks are detected.
STATE_VERSION = 2
TEST = 0x20 << 56
THRESHOLD = 0x21 << 56
PICK = 0x22 << 56

_BLOCK_NAME = re.compile("m[0-9a-f]{8}")


class SparseState(State):
    """The chosen items of every stream key, beside the ledger.

    These are public, unlike the ledger: snapshots show them.
    """

    def __init__(self) -> None:
        super().__init__()
        # By stream key: places in the domain, in the order picked; and how many switches it used.
        self.chosen: dict[int, tuple[int, ...]] = {}
        self.used: dict[int, int] = {}
        # Stream keys whose choice `changed` has yet to return.
        self._changed: set[int] = set()

    def choose(self, key: int, chosen: Sequence[int], used: int) -> None:
        """Note the items chosen for a stream key, and how many switches it has used by now."""
        self.chosen[key] = tuple(chosen)
        self.used[key] = used
        self._changed.add(key)

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the blocks of stream keys whose items were chosen since the last call."""
        blocks = []
        for key in sorted(self._changed):
            chosen = self.chosen[key]
            numbers = np.array((self.used[key], len(chosen), *chosen), dtype="<u4")
            block = bytes((STATE_VERSION,)) + numbers.tobytes()
            blocks.append((f"m{key:08x}", block))
        self._changed = set()
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        """Read a stream key's stored block (see the module); refuse one that is damaged."""
        if not _BLOCK_NAME.fullmatch(name):
            raise unknown_block(name)
        numbers = body_of(name, block, STATE_VERSION)
        if len(numbers) < 8 or len(numbers) % 4:
            raise StateRefused(f"stored state: block {name!r} is cut short")
        used, k, *chosen = np.frombuffer(numbers, dtype="<u4").tolist()
        if len(chosen) != k:
            raise StateRefused(
                f"stored state: block {name!r} of {k} items is cut short or too long"
            )
        key = int(name[1:], 16)
        self.chosen[key] = tuple(chosen)
        self.used[key] = used


class SparseNoise:
    """All noise of an epoch: of counts, tests, their thresholds and picks (the module's cells)."""

    def __init__(self, mechanism: "SparseGumb", stream: NoiseStream) -> None:
        counter = mechanism._counter
        self._stream = stream
        self._counter = counter
        self._test = mechanism._test_table
        self._threshold = mechanism._threshold_table
        # At every tick the noise of the few chosen rows is drawn without a cache. If that takes
        # longer with every tick (`grows`), there is a cache of all rows instead.
        self._columns = counter.columns(stream) if counter.grows else None

    def at(self, t: int, tags: Tags) -> Longs:
        return self._counter.draw(self._stream, t, tags)

    def chosen(self, t: int, tags: Tags, rows: Rows) -> Longs:
        """Return the noise of the counts of some rows at tick t; `tags` are those of all rows."""
        if self._columns is not None:
            return self._columns.at(t, tags)[rows]
        return self._counter.draw(self._stream, t, tags.take(rows, axis=0))

    def test(self, t: int, tags: Tags) -> Longs:
        """Return Y of every row at tick t."""
        return self._test.values(self._stream, (TEST, t), tags)

    def threshold(self, key_tag: Tags, used: int) -> int:
        """Return Z of a stream key after `used` switches."""
        return int(self._threshold.values(self._stream, (THRESHOLD, used), key_tag)[0])

    def picks(self, key_tag: Tags, choice: int, k: int) -> list[tuple[int, int]]:
        """Return k random 128-bit words, as (upper, lower) halves, for a choice, by its number."""
        words = (
            self._stream.words(key_tag, (PICK | i, choice))[0].tolist()
            for i in range(k)
        )
        return [(upper, lower) for upper, lower in words]


_DOMAIN = 'a list of labels such as ["p1", "p2"], at least two, none of them empty'
_ETA = "a whole number from 0 to 2^40"
_COMPARED_SWITCHES = 20


class SparseGumbConfig(HistogramConfig, frozen=True, kw_only=True, tag="sparse_gumb"):
    """Running counts of the `top_k` of declared labels, chosen anew at most `switches` times.

    `eta` is the switch margin (None: eta_t); `accounting` "paper" is Theorem 4 as printed.
    """

    about = About(
        order_in_tables=30,
        family="running",
        text_in_plan="running counts of a top k of declared labels",
        text_on_dashboard="The largest items of a declared list; which ones is chosen again now and then.",
        counters="every",
        takes_end_share=True,
        subtracts=True,
        in_ledger=True,
        pays="pays where events touch very many items",
    )

    domain: Annotated[tuple[Label, ...], Meta(min_length=2, description=_DOMAIN)]
    top_k: Count
    switches: Count
    eta: Annotated[int, Meta(ge=0, le=2**40, description=_ETA)] | None = None
    accounting: Literal["tight", "paper"] = "tight"

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        """Yield settings to compare with `other`: as many items as it shows."""
        # It is 0 if no setting of `other` says how many it shows.
        k = most_shown_by(other) or COMPARED_TOP_K
        if other.declared:
            # Not all labels: there must be some to choose from.
            k = max(1, min(k, len(other.declared) - 1))
        yield {"top_k": k, "switches": _COMPARED_SWITCHES}

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.top_k >= len(self.domain):
            yield f"top_k = {display(self.top_k)}: must be below the {len(self.domain):,} labels of domain; else take known_base"


class SparseGumb(CounterMechanism):
    """Continual top k with at most s switches for each stream key.

    Guarantee: rho-zCDP, and (epsilon, delta) by one conversion, for the content of one event with
    any number of items, over all ticks of an epoch. `difference_sd` is for an item chosen at both.
    """

    configs = (SparseGumbConfig,)
    config: SparseGumbConfig

    def __init__(self, config: SparseGumbConfig, unit: str = "event") -> None:
        """Compute the scales of all noise from rho, then what that noise costs.

        Symbols and proof are the module's. kappa adds up the three costs below: k / 2 of counters,
        k / 2 of picks, and 1/8 (or 2) of tests.
        """
        super().__init__(config, unit, discovers=False)
        tight = config.accounting == "tight"
        k = config.top_k
        s = config.switches
        kappa = k + (Fraction(1, 8) if tight else Fraction(2))
        tau_squared = kappa * config.max_count**2 / Fraction(self._cost.rho)
        tau_1 = _root_up(s * tau_squared)
        tau_2 = _root_up((s + 1) * tau_squared)
        # Rounded down: the zCDP of a unit change in one item's counter.
        rho_item = math.nextafter(float(1 / (2 * (s + 1) * tau_squared)), 0.0)
        self._counter = counter_of(config, rho_item)
        self._pick_scale = round_up_scale(tau_2 / 2)
        self._threshold_scale = round_up_scale(2 * tau_1)
        self._test_scale = round_up_scale(4 * tau_1)
        table = laplace.geometric if tight else laplace.discrete_laplace
        self._threshold_table: Geometric | DiscreteLaplace = table(
            self._threshold_scale
        )
        self._test_table: Geometric | DiscreteLaplace = table(self._test_scale)
        # Scales are rounded up, so at most rho is spent. A loss of range eps costs eps^2 / 8. The
        # costs here are for an event that changes counts by one; a change by Dinf costs Dinf^2
        # times as much.
        counts = k * (s + 1) * Fraction(self._counter.rho_item)
        picks = k * (s + 1) / self._pick_scale**2 / 8
        test_range = 1 / self._threshold_scale + 2 / self._test_scale
        tests = s * test_range**2 / 8 if tight else 2 / tau_squared
        spent = float_up((counts + picks + tests) * config.max_count**2)
        self._set_cost(spent, self._tv())

    def _parameters(self) -> Mapping[str, object]:
        """Return what the mechanism's id depends on, beside what all mechanisms have."""
        return {
            "top_k": self.config.top_k,
            "switches": self.config.switches,
            "eta": self.config.eta,
            "accounting": self.config.accounting,
            "scales": [
                str(self._pick_scale),
                str(self._threshold_scale),
                str(self._test_scale),
            ],
            "versions": [laplace.TABLE_VERSION, SELECTION_VERSION],
            "counter": self._counter.public(),
            # The order matters: the state identifies items by their place.
            "domain": short_hash(repr(self._domain).encode()),
        }

    def eta(self, t: int) -> int:
        """Return eta_t, the margin by which an item outside must exceed those inside."""
        if self.config.eta is not None:
            return self.config.eta
        spread = float(self._test_scale) * math.log(len(self._domain) * (t + 1))
        return math.ceil(2 * self.sd(t) + spread)

    def most_shown(self) -> int:
        return self.config.top_k

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Return the bounds on counts and on selection, each with failure probability beta.

        If switches remain and none is made at t, every outside item satisfies count + Y <= least +
        N + eta_t + Z, N the noise of the least published count: the item exceeds it by at most
        eta_t + |N| + Z (+ |Y| where Y may be negative). A choice made at t leaves no outside item
        more than b ln(d k (s+1) / beta) above an inside one (exponential mechanism). beta is split
        evenly over four tails: counters, threshold noise, test noise if it may be negative, picks.
        """
        config = self.config
        d = len(self._domain)
        ticks = self._ticks(data)
        worst = self.worst_variance(ticks)
        rounding = 0.5
        text = f"error of every count shown, over {d:,} labels and {ticks:,} ticks"
        error = normal_bound(worst, d * ticks, beta) + rounding
        source = "Cardoso, Rogers: Theorems 2 and 4"
        counts = Bound("counts", text, "", beta, error, source)
        part = beta / 4
        picks = config.top_k * (config.switches + 1)
        test = float(self._test_scale)
        eta = config.eta
        if eta is None:
            sd = math.sqrt(worst + 1 / 12)
            eta = math.ceil(2 * sd + test * math.log(d * (ticks + 1)))
        noise = normal_bound(worst, d * ticks, part)
        # Bounds on Y and Z are one more than for Laplace noise, as they are whole numbers.
        late = laplace_bound(float(self._threshold_scale), config.switches, part) + 1
        error = noise + rounding + eta + late
        if config.accounting != "tight":
            error += laplace_bound(test, d * ticks, part) + 1
        error = max(error, float(self._pick_scale) * math.log(d * picks / part))
        text = "by how much a hidden item exceeds a shown one, at every tick until the last switch is made"
        source = "Cardoso, Rogers: Theorem 4 and Appendix D (constants derived here)"
        return counts, Bound("selection", text, "", beta, error, source)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield the margin eta_t at the first test and at tick `last`, and what picks may miss."""
        # Tick 1 chooses; nothing is tested before tick 2.
        if last > 1:
            meaning = (
                "at tick 2 an item outside must lie this far above the least shown"
            )
            yield Figure("eta_first", float(self.eta(2)), meaning)
            yield Figure("eta_last", float(self.eta(last)), "the same at the last tick")
        yield from pick_figures(float(self._pick_scale))

    def hints(self) -> Iterator[str]:
        config = self.config
        limit = 2 * (config.switches + 1) * (config.top_k + 0.125)
        yield f"Its counts have less noise than those of known_base if max_items is above {limit:,.0f}; here it is {config.max_items:,}."

    def noise_bytes(self, counter: Counter) -> int:
        """Return 0: noise is drawn again for the few items that are shown, and not kept."""
        return 0

    def row_bytes(self) -> RowBytes:
        # A counter that grows keeps a number of 8 bytes for every tick.
        kept = self.config.ticks if self._counter.grows else 0
        return super().row_bytes()._replace(noise=8 * kept)

    def init(self) -> State:
        return SparseState()

    def carry(
        self, last: State, t: int, noise: Noise, state: State, keys: Codes
    ) -> Rows:
        """Begin with the items chosen last: tick 1 then chooses none for these stream keys.

        No switch of the new epoch is used up by that. `keys` has, for each stream key of `last`,
        its index in the new `state`, or -1. Return the rows that the items have in the new state.
        """
        before = expect_type(SparseState, last)
        begun = expect_type(SparseState, state)
        for key, chosen in before.chosen.items():
            if keys[key] >= 0:
                begun.choose(int(keys[key]), chosen, 0)
        return self._rows(begun, sorted(begun.chosen)).reshape(-1)

    def noise(self, stream: NoiseStream) -> Noise:
        return SparseNoise(self, stream)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        """Count a tick, test and choose again where a switch is due, and show the chosen."""
        state = expect_type(SparseState, state)
        noise = expect_type(SparseNoise, noise)
        ledger = state.ledger
        s = self.config.switches
        state.merge(contributions, add_rows=False)
        counts = ledger.counts.reshape(-1, len(self._domain))
        testing = [
            key
            for key in range(len(counts))
            if key in state.chosen and state.used[key] < s
        ]
        if testing:
            # By stream key: m, the least published count inside.
            inside = self._counts(state, t, testing, noise).min(axis=1).tolist()
            # And the largest count + Y outside; those inside become the least int64.
            tested = ledger.counts + noise.test(t, ledger.tags)
            outside = tested.reshape(counts.shape)[testing]
            chosen = np.array([state.chosen[key] for key in testing])
            np.put_along_axis(outside, chosen, np.iinfo(np.int64).min, axis=1)
            highest = outside.max(axis=1).tolist()
            for key, least, most in zip(testing, inside, highest, strict=True):
                used = state.used[key]
                z = noise.threshold(state.key_tags[key : key + 1], used)
                if most > least + self.eta(t) + z:
                    self._choose(state, key, counts[key], used + 1, noise)
        # Choose without a test at tick 1, and at the first tick of a stream key that comes later.
        for key in range(len(counts)):
            if key not in state.chosen:
                self._choose(state, key, counts[key], 0, noise)
        shown = self._rows(state, range(len(counts)))
        noisy = self._counts(state, t, range(len(counts)), noise).reshape(-1)
        # A release has ascending rows.
        order = np.argsort(shown.reshape(-1))
        rows = shown.reshape(-1)[order]
        return state, Release(rows, noisy[order], self.sd(t), threshold=None)

    def _choose(
        self, state: SparseState, key: int, counts: Longs, used: int, noise: SparseNoise
    ) -> None:
        """Choose k items of a stream key by the exponential mechanism.

        `counts` (d,) are the exact ones of its domain; `used` includes the switch to this choice.
        """
        k = self.config.top_k
        words = noise.picks(state.key_tags[key : key + 1], used, k)
        chosen = gumbel_top_k(counts, self._pick_scale, k, words)
        state.choose(key, chosen.tolist(), used)

    def _rows(self, state: SparseState, keys: Sequence[int]) -> Longs:
        """Return the ledger rows of the chosen items, (keys, k), in the order picked.

        Stream key i has the rows i d .. (i + 1) d - 1, d the size of the domain.
        """
        chosen = [state.chosen[key] for key in keys]
        places = np.array(chosen, dtype=np.int64).reshape(len(keys), self.config.top_k)
        return places + np.array(keys, dtype=np.int64)[:, None] * len(self._domain)

    def _counts(
        self, state: SparseState, t: int, keys: Sequence[int], noise: SparseNoise
    ) -> Longs:
        """Return the noisy counts of the chosen items at tick t, (keys, k)."""
        rows = self._rows(state, keys)
        drawn = noise.chosen(t, state.ledger.tags, rows.reshape(-1)).reshape(rows.shape)
        noisy: Longs = state.ledger.counts[rows] + drawn
        return noisy

    def _tv(self) -> float:
        """Bound the total variation of the samplers: of all samples whose law an event changes."""
        config = self.config
        # An event changes Y of its items, Z of each threshold, and all picks of each choice.
        d = len(self._domain)
        tests = min(config.max_items, d) * (config.horizon_ticks or LONGEST_HORIZON)
        tv = tests * Fraction(self._test_table.tv)
        tv += config.switches * Fraction(self._threshold_table.tv)
        return float_up(
            tv + (config.switches + 1) * Fraction(selection_tv(d, config.top_k))
        )


def _root_up(value: Fraction) -> Fraction:
    """Return a square root, rounded up to a multiple of 2^-40."""
    root = math.isqrt(math.ceil(value * (1 << 80)))
    return Fraction(root + 1, 1 << 40)
