"""Misra-Gries sketches released once each: the frequent labels of every tick by itself.

A sketch keeps `size` counters, for the most frequent labels, each too low by up to n / (size + 1)
of n counts. An event lies in one tick, and ticks compose in parallel, so an epoch of any length
costs what one release costs: exactly (epsilon, delta), with nothing converted from zCDP.
`price_sketch` also serves `meta`, whose blocks are released once each; an event lies in one block
of each level.

    release     noise and threshold (`misra_gries.releases`)        epsilon of L releases
    "pmg"       Laplace, one a counter and one for all of them      L times that of one
    "pure"      Laplace, on every label of a domain                 L times that of one
    "gshm"      Gaussian, on the counters of a merged histogram     one release: Theorem 5, exactly;
                                                                    several: rho, as the others
    "pamg"      "gshm", of sketches of sets that stage 1 has fed    one release

A mechanism's settings declare in `about` what plans, tables and the dashboard say of it (`About`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal

from workers.mechanisms.about import About, Bound, Data, Figure
from workers.mechanisms.accounting import (
    PrivacyCost,
    check_sampler_delta,
    float_up,
    sampler_delta,
)
from workers.mechanisms.budget import NUMERICAL_SHARE, split
from workers.mechanisms.config.checked import whole
from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.releases import (
    GshmLaw,
    Law,
    PmgLaw,
    PureLaw,
    SparseGaussianLaw,
    gshm_threshold,
)
from workers.mechanisms.noise.inversion import round_up_to_grid
from workers.mechanisms.one_shot import bounds
from workers.mechanisms.one_shot.algorithms import (
    IN_EPSILON,
    INWARD,
    LAPLACE,
    Name,
    Sketched,
)
from workers.mechanisms.one_shot.one_shot import EachTick, OneShotConfig

Size = Annotated[int, whole(1, 100_000)]
# Counters of a sketch in a plan's comparison.
_COMPARED_SIZE = 1_000


def sketch_complaints(
    config: HistogramConfig, setting: str, release: str
) -> Iterator[str]:
    """Yield what does not go with a release of sketches; `setting` names what chooses it."""
    if release in IN_EPSILON and config.epsilon is None:
        yield f'{setting} = "{release}": needs epsilon, not rho'
    if release in ("gshm", "pamg") and config.max_count > 1:
        yield (
            f'max_count = {config.max_count}: {setting} = "{release}" needs max_count = 1, '
            "as its exact condition is for counters that differ by one"
        )


def price_sketch(
    config: HistogramConfig, release: Name, size: int, releases: int = 1
) -> tuple[Sketched, PrivacyCost]:
    """Return a release of sketches, and the cost of an event that lies in so many `releases`.

    The module's table says how each `release` is accounted for. `size`: counters of a sketch.
    Raise ValueError if the noise is more than its tables have, or delta less than they can promise.
    """
    # Most occurrences that an event adds to a stream.
    sensitivity = config.max_items * config.max_count
    # The part of delta for the samplers' distance from their laws.
    numerical = config.delta * NUMERICAL_SHARE
    law: Law
    # Named parts of delta.
    failures: tuple[tuple[str, float], ...]
    if release == "gshm" and releases == 1 and config.epsilon is not None:
        # One release: exactly (epsilon, delta).
        law = GshmLaw(size, config.epsilon, config.delta - numerical)
        failures = (("numerical", numerical), ("discovery", law.discovery))
        cost = PrivacyCost(
            law.rho, config.epsilon, config.delta, failures=failures, gaussian=True
        )
    elif release == "gshm":
        # In rho: up to `size` counters change by one, in each of the releases. `INWARD` takes a
        # little less of delta, for the errors of floats.
        budget = split(config, discovers=True)
        discovery = dict(budget.failures)["discovery"] * INWARD
        sigma_squared = round_up_to_grid(
            size * releases / (2 * Fraction(budget.rho)), "sigma_squared"
        )
        threshold = gshm_threshold(size, sigma_squared, discovery / releases)
        law = SparseGaussianLaw(size, sigma_squared, threshold)
        rho = float_up(Fraction(size * releases) / (2 * sigma_squared))
        cost = replace(budget, rho=min(budget.rho, rho))
    else:
        # In pure epsilon, an equal part for each release; all of delta is set aside. Epsilon is
        # never None here (`sketch_complaints`).
        epsilon = Fraction(config.epsilon or 0) / releases
        if release == "pmg":
            discovery = float_up(Fraction(config.delta) - Fraction(numerical))
            law = PmgLaw(size, sensitivity, epsilon, discovery / releases * INWARD)
            failures = (("numerical", numerical), ("discovery", discovery))
        else:
            law = PureLaw(size, sensitivity, epsilon)
            failures = (("numerical", config.delta),)
        # A release is epsilon-DP, so epsilon^2 / 2-zCDP.
        rho = float_up(releases * Fraction(law.epsilon) ** 2 / 2)
        cost = PrivacyCost(
            rho, config.epsilon or 0.0, config.delta, failures=failures, pure=True
        )
    # The samplers' distance from their laws must fit their share of delta. `concerned` is how many
    # noise values are added to a different count for a neighbouring input.
    share = 1.0 if release == "pure" else NUMERICAL_SHARE
    needed = sampler_delta(cost.epsilon, releases * law.concerned, law.table.tv)
    check_sampler_delta(config.delta, cost.epsilon, needed, share)
    return Sketched(release, size, law), cost


class TickMisraGriesConfig(
    OneShotConfig, frozen=True, kw_only=True, tag="misra_gries_tick"
):
    """The frequent items of every tick by itself; `size` counters of a sketch."""

    about = About(
        order_in_tables=95,
        family="tick",
        text_in_plan="each tick's frequent labels, too low by up to a share of the tick's items",
        noise_is_on="each count shown; what the sketch leaves out comes on top",
        text_on_dashboard="Only frequent items are kept.",
        threshold_rule="each",
        needs_epsilon=True,
        may_be_pure=True,
    )
    # Only "pure" has a declared domain (`lists_labels`).
    decides_domain = "release"

    size: Size
    # "pmg": best for events of few items. "gshm": best once max_items is well above the root of
    # size. "pamg": the same of sketches that stage 1 counts with. "pure": pure epsilon, over a
    # declared domain.
    release: Literal["pmg", "gshm", "pamg", "pure"] = "pmg"
    domain: Domain | None = None

    @classmethod
    def lists_labels(cls, values: Mapping[str, object]) -> bool:
        return values.get("release") == "pure"

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        if other.epsilon is not None:
            yield {"size": _COMPARED_SIZE}

    @property
    def algorithm(self) -> Name:
        return "gshm" if self.release == "pamg" else self.release

    @property
    def source_counters(self) -> int:
        return self.size if self.release == "pamg" else 0

    @property
    def pure(self) -> bool:
        return self.release == "pure"

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong with the settings, as sentences for the operator."""
        yield from super().complaints()
        if self.pure and self.domain is None:
            yield 'domain, domain_file or buckets is missing: release = "pure" needs one of them'
        if not self.pure and self.domain is not None:
            yield f'{self.domain_from} is set: release = "{self.release}" has none'
        yield from sketch_complaints(self, "release", self.release)


class TickMisraGries(EachTick):
    """The frequent items of every tick.

    Guarantee: (epsilon, delta)-DP for the content of one event, over all ticks of an epoch
    together; epsilon-DP up to the sampler's distance with "pure".
    """

    configs = (TickMisraGriesConfig,)
    config: TickMisraGriesConfig
    algorithm: Sketched

    def __init__(self, config: TickMisraGriesConfig, unit: str = "event") -> None:
        # Not that of `Budgeted`, which splits the budget: `price_sketch` has a split of its own.
        Mechanism.__init__(self, config, unit)
        self._name = config.algorithm
        self.algorithm, self._cost = price_sketch(config, self._name, config.size)
        self.law = "laplace" if self._name in LAPLACE else "gaussian"
        self._threshold = self.algorithm.threshold

    def _parameters(self) -> Mapping[str, object]:
        return {**super()._parameters(), "release": self.config.release}

    def most_shown(self) -> int | None:
        return self.config.size

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        share = 1 / (self.config.size + 1)
        meaning = "of a tick's items, most that a count lacks before noise"
        yield Figure("undercount_share", share, meaning)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the error of every count of a tick, an item that is not shown counted as 0."""
        releases = self._ticks(data)
        shown = self.config.size if not self._domain else len(self._domain)
        # `weight` bounds the counts of an epoch, and so those of each of its ticks.
        lost = data.weight / (self.config.size + 1)
        # 1, as a count is that of one sketch.
        error = lost + bounds.sketch_error(self.algorithm, 1, shown * releases, beta)
        text = f"error of every count, over {releases:,} ticks"
        assumes = f"at most {data.weight:,} counts in a tick"
        source = bounds.SOURCES[self._name][0]
        return (Bound("counts", text, assumes, beta, error, source),)
