"""Pay what you get: labels of the largest items, until a budget of labels or queries is spent.

A query, every `every` ticks, picks labels one after another, each with a probability in proportion
to exp(h / b), among the kbar items of largest running count h and BOTTOM, which is no item and ends
the picks: its count is above h_(kbar+1), the largest that is no candidate's (`algorithms.Bottom`).
So an answer has up to k labels, fewer if BOTTOM comes first or less remains of `labels` (k*). A
query is charged for its picks, including BOTTOM and the choice of a private kbar. rho = k* Dinf^2 /
(8 b^2) with b the scale of a pick; delta_discovery is l* (`queries`) times a query's. Every stream
key has a separate budget, as an event has one stream key; once it is spent, queries are refused
until the epoch ends. The remainder is stored; as a function of published answers it is public.

Source: Durfee, Rogers, Alg. 2 and Theorem 2; Rogers, Alg. 4 and Theorem 10 (zCDP).
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated

import numpy as np
from msgspec import Meta

from workers.arrays.tag_index import Rows
from workers.arrays.types import Tags
from workers.mechanisms.about import About, Bound, Data, Figure, pick_figures
from workers.mechanisms.accounting import float_up
from workers.mechanisms.budget import Budgeted
from workers.mechanisms.ledger import Parts, rows_by_key
from workers.mechanisms.mechanism import (
    Answers,
    Noise,
    State,
    body_of,
    expect_type,
    unknown_block,
)
from workers.mechanisms.noise import selection
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.one_shot import bounds
from workers.mechanisms.one_shot.algorithms import (
    INWARD,
    Bottom,
    Cell,
    OneShotNoise,
    bar_figure,
    scale_for,
)
from workers.mechanisms.one_shot.one_shot import Count, Kbar, ReleasingConfig
from workers.runtime.errors import BudgetExhausted, StateRefused

# Remaining budgets, by stream key: labels and queries, int32 each.
_BLOCK = "mpay"
_VERSION = 1
_EVERY = 'a whole number of ticks from 1 to 100,000, or a duration such as "1h"'


class PayWhatYouGetConfig(
    ReleasingConfig, frozen=True, kw_only=True, tag="pay_what_you_get"
):
    """An epoch has at most l* `queries` and k* `labels`, BOTTOM included; an answer, `k` labels."""

    about = About(
        order_in_tables=130,
        family="labels",
        text_in_plan="labels of the largest so far, without counts",
        noise_is_on="the comparison of two items that decides a pick",
        text_on_dashboard="The largest items so far, asked for now and then, without their counts.",
    )

    k: Count
    kbar: Kbar
    # The upper end of a kbar that is chosen privately; None is `one_shot.KBAR_MAX`.
    kbar_max: Count | None = None
    labels: Count
    queries: Count
    every: Annotated[int, Meta(ge=1, le=100_000, description=_EVERY)] = 1

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with the settings, as sentences for the operator."""
        yield from super().complaints()
        # A query picks as that mechanism does.
        yield from self._parameter_complaints("limit_dom")
        if self.k > self.labels:
            yield f"k = {self.k}: at most labels = {self.labels}"
        if self.kbar == "private" and self.labels == 1:
            yield 'labels = 1: at least 2 with kbar = "private", since each choice of kbar is charged as one'
        if self.horizon_ticks is not None and self.every > self.horizon_ticks:
            yield f"every = {self.every}: nothing would ever be asked within horizon = {self.horizon_ticks}"


class PayState(State):
    """Running counts (sensitive); `left` is [labels, queries] per stream key (public)."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[list[int]] = []
        self._changed = False

    def add_key(self, labels: int, queries: int) -> None:
        """Give a new stream key its budget for the epoch."""
        self.left.append([labels, queries])
        self._changed = True

    def spend(self, key: int, labels: int) -> None:
        """Charge one query and its labels, or raise `BudgetExhausted` and spend nothing."""
        labels_left, queries_left = self.left[key]
        if labels_left < labels or queries_left < 1:
            raise BudgetExhausted(
                f"pay_what_you_get: {labels} labels and 1 query asked, {labels_left} and "
                f"{queries_left} left"
            )
        self.left[key] = [labels_left - labels, queries_left - 1]
        self._changed = True

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the block of remaining budgets to store, if it changed since the last call."""
        if not self._changed:
            return ()
        self._changed = False
        left = np.array(self.left, dtype="<i4")
        return [(_BLOCK, bytes((_VERSION,)) + left.tobytes())]

    def restore(self, name: str, block: bytes) -> None:
        """Take back a block that `changed` returned."""
        if name != _BLOCK:
            raise unknown_block(name)
        left = body_of(name, block, _VERSION)
        # A stream key has two numbers of 4 bytes.
        if len(left) % 8:
            raise StateRefused(f"stored state: block {name!r} is cut short")
        self.left = np.frombuffer(left, dtype="<i4").reshape(-1, 2).tolist()


class PayWhatYouGet(Budgeted):
    """Top labels of running counts under a budget of returned labels.

    Guarantee: as `Budgeted`, regardless of how many labels the queries asked for.
    """

    configs = (PayWhatYouGetConfig,)
    law = "logistic"
    config: PayWhatYouGetConfig

    def __init__(self, config: PayWhatYouGetConfig, unit: str = "event") -> None:
        super().__init__(config, unit, discovers=True)
        parameters = config.parameters()
        # All picks of an epoch cost this over b^2.
        of_picks = Fraction(config.labels * config.max_count**2, 8)
        # Until `_set_cost`, `_cost` is the budget.
        self.scale = scale_for(of_picks, self._cost.rho)
        delta_query = self.delta_discovery / config.queries * INWARD
        self._bottom = Bottom(parameters, self.scale, delta_query)
        # A private kbar is chosen in every query, which is charged as one label.
        self._kbar_charge = int(parameters.private)
        tv = selection.selection_tv(parameters.kbar + 1, config.labels)
        self._set_cost(float_up(of_picks / self.scale**2), tv)

    def _parameters(self) -> Mapping[str, object]:
        """Return the public parameters of which the mechanism id, and so its noise, is a hash."""
        return {
            "horizon": self.config.horizon_ticks,
            "discovery": {"delta": repr(self.delta_discovery)},
            "k": self.config.k,
            "labels": self.config.labels,
            "queries": self.config.queries,
            "every": self.config.every,
            "scale": str(self.scale),
            "selection_version": selection.SELECTION_VERSION,
            "bottom": self._bottom.public(),
        }

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield what a plan says beside the noise: of picks, of BOTTOM, and of the budget."""
        yield from pick_figures(float(self.scale))
        yield from bar_figure(self._bottom.height)
        config = self.config
        yield Figure("labels", float(config.labels), "budget of labels in an epoch")
        yield Figure("queries", float(config.queries), "budget of answers in an epoch")

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound how far an item that an answer with BOTTOM omits may lie above h_(kbar+1)."""
        config = self.config
        p = config.parameters()
        answers = min(config.queries, max(1, self._ticks(data) // config.every))
        picks = min(config.labels, answers * config.k)
        error = self._bottom.height + bounds.pick_error(
            float(self.scale), p, picks, answers, beta
        )
        text = bounds.above_the_rest(p) + " by an answer that is not complete"
        return (Bound("hidden", text, "", beta, error, bounds.SOURCE_OF_PICKS),)

    def sd(self, t: int) -> float:
        # Of a comparison of two items: the difference of two Gumbel values is logistic.
        self._check(t)
        return float(self.scale) * float(np.pi) / 3**0.5

    def init(self) -> PayState:
        return PayState()

    def noise(self, stream: NoiseStream) -> Noise:
        return OneShotNoise(stream, None)

    def prepare_key(
        self, state: State, key: int, tags: Tags, labels: Sequence[bytes]
    ) -> None:
        expect_type(PayState, state).add_key(self.config.labels, self.config.queries)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Answers]:
        """Count a tick; at multiples of `every`, answer for each stream key while it can pay."""
        self._check(t)
        state = expect_type(PayState, state)
        noise = expect_type(OneShotNoise, noise)
        keys_seen = len(state.key_tags)
        keys = range(len(state.left))
        # A stream key without its stored budget must not get a new one.
        if len(keys) != keys_seen:
            raise StateRefused(
                f"stored state: budgets of {len(keys)} stream keys of {keys_seen}"
            )
        state.merge(contributions, add_rows=True)
        if t % self.config.every:
            answers = {key: self._answer(state, key, asked=False) for key in keys}
            return state, Answers(answers, None)
        columns = state.ledger
        cell = Cell(columns.tags, columns.keys, columns.counts, state.key_tags)
        rows_of = dict(rows_by_key(cell.keys))
        none = np.empty(0, dtype=np.int64)
        answers = {
            key: self._query(state, cell, rows_of.get(key, none), key, noise, t)
            for key in keys
        }
        return state, Answers(answers, None)

    def _query(
        self,
        state: PayState,
        cell: Cell,
        rows: Rows,
        key: int,
        noise: OneShotNoise,
        t: int,
    ) -> Mapping[str, object]:
        """Answer a query. A key without items is charged too: that it has none is data."""
        labels, queries = state.left[key]
        # As many picks as the rest of the budget can pay for.
        k = min(self.config.k, labels - self._kbar_charge)
        if k < 1 or queries < 1:
            return self._answer(state, key, refused=True)
        picked, ended = self._bottom.pick(cell, rows, key, k, noise, (0, t))
        # BOTTOM, if it ended the picks, is one of them.
        state.spend(key, len(picked) + ended + self._kbar_charge)
        names = [state.ledger.label(row).decode() for row in picked.tolist()]
        return self._answer(state, key, labels=names, complete=not ended)

    def _answer(
        self, state: PayState, key: int, **fields: object
    ) -> Mapping[str, object]:
        """Return the published fields of an answer: its own, and what is left of the budget."""
        labels, queries = state.left[key]
        return {
            "query": "top",
            **fields,
            "labels_left": labels,
            "queries_left": queries,
        }
