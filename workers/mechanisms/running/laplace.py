"""KnownLaplace: running counts of a declared domain whose epsilon is pure.

    D0, Dinf    `max_items`, `max_count`
    r, L        base and levels of the tree over the ticks; r* = argmin (r - 1) L^3, since the noise
                of a block grows with L
    b           scale of a block's noise: L D0 Dinf / epsilon, rounded up

Every label's running count has the noise of a `LaplaceTree`. Neighbours: the content of one event
emptied, or the reverse. An event lies in one block of each level, and changes it by at most Dinf
for at most D0 labels. A user's parts of an item, a_1 + ... <= Dinf, may lie in several blocks of a
level: their changes add up to at most Dinf (l1), their squares to at most Dinf^2 (l2).

    epsilon     L D0 Dinf / b: the l1 norm of all changes, over b
    rho         L D0 Dinf^2 / (2 b^2): a value moved by a costs (a / b)^2 / 2
    delta       covers only the distance of the sampler from its law; an event has L D0 values, a
                user's parts up to Dinf times as many

Source: Chan, Shi, Song, "Private and Continual Release of Statistics", with a base-r tree and
integer noise.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Literal

import numpy as np

from workers.mechanisms.about import About, Bound, Data
from workers.mechanisms.accounting import (
    PrivacyCost,
    check_sampler_delta,
    float_up,
    sampler_delta,
)
from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.counters.laplace_tree import LaplaceTree, laplace_tree
from workers.mechanisms.counters.tree import best_radix
from workers.mechanisms.curves import Curve
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Mechanism, Noise, Release, State, short_hash
from workers.mechanisms.noise.keyed import NoiseStream


class KnownLaplaceConfig(
    HistogramConfig, frozen=True, kw_only=True, tag="known_laplace"
):
    """Running counts of every declared label, at a pure epsilon."""

    about = About(
        order_in_tables=15,
        family="running",
        text_in_plan="running counts of every declared label, epsilon pure",
        text_on_dashboard="Every item of a list that was declared beforehand is shown.",
        counters="tree",
        subtracts=True,
        whole_domain=True,
        per_item=True,
        needs_end=True,
        needs_epsilon=True,
        may_be_pure=True,
        in_ledger=True,
        pays="pays where epsilon must be a pure one",
    )

    domain: Domain
    counter: Literal["tree"] = "tree"

    @property
    def pure(self) -> bool:
        return True


class KnownLaplace(Mechanism):
    """Running counts of a declared domain, all shown at every tick.

    Guarantee: epsilon-DP, up to the sampler's distance (delta), for the content of one event (or
    one user's in an epoch), over all ticks together, on streams that may react to releases.
    """

    configs = (KnownLaplaceConfig,)
    config: KnownLaplaceConfig
    law = "laplace"

    def __init__(self, config: KnownLaplaceConfig, unit: str = "event") -> None:
        """Make the tree that epsilon pays for, and set what it costs: see the module."""
        super().__init__(config, unit)
        # Never None: `about` says that it is needed.
        epsilon = config.epsilon or 0.0
        sensitivity = config.max_items * config.max_count
        radix = config.radix or best_radix(config.ticks, power=3)
        self._tree: LaplaceTree = laplace_tree(
            config.ticks, Fraction(epsilon), sensitivity, radix
        )
        # The noise values that an event changes.
        changed = self._tree.levels * config.max_items
        # All of delta is for the sampler's distance from its law.
        numerical = sampler_delta(
            epsilon, changed * self.ticks_of_item(), self._tree.tv
        )
        check_sampler_delta(config.delta, epsilon, numerical, share=1.0)
        rho = float_up(changed * config.max_count**2 / (2 * self._tree.scale**2))
        failures = (("numerical", config.delta),)
        self._cost = PrivacyCost(
            rho, epsilon, config.delta, failures=failures, pure=True
        )

    def _parameters(self) -> Mapping[str, object]:
        domain = short_hash(repr(sorted(self._domain)).encode())
        return {"counter": self._tree.public(), "domain": domain}

    def sd(self, t: int) -> float:
        self._check(t)
        return self._tree.sd(t)

    def difference_sd(self, t: int, since: int) -> float:
        self._check(t)
        return self._tree.difference_sd(t, since)

    def curve(self, last: int) -> Curve:
        return self._tree.curve()

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Return the bound on the noise of all labels at all ticks, whatever the data."""
        labels = len(self._domain)
        ticks = self.config.ticks
        text = f"error of every count shown, over {labels:,} labels and {ticks:,} ticks"
        error = self._tree.bound(labels * ticks, beta)
        source = "Chan, Shi, Song (bound derived here)"
        return (Bound("counts", text, "", beta, error, source),)

    def hints(self) -> Iterator[str]:
        yield "Epsilon is pure: of delta, only what the sampler may be off its law is used."

    def noise(self, stream: NoiseStream) -> Noise:
        return self._tree.columns(stream)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        """Count a tick of declared labels (others get no row), and release all of them."""
        state.merge(contributions, add_rows=False)
        ledger = state.ledger
        noisy = noise.at(t, ledger.tags) + ledger.counts
        return state, Release(np.arange(ledger.n), noisy, self.sd(t), threshold=None)
