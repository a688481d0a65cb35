"""Startup check: refuse settings that exceed their own ceiling, and suggest what would fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.accounting import PrivacyCost, epsilon_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import build
from workers.privacy.ceiling import Ceiling, FullestWindow, fullest_of, most_epochs
from workers.privacy.total import Charge, charge_of
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

# Shares of the epsilon that fits by arithmetic; each is tried by building the mechanism.
_TRIES = (1.0, 0.98, 0.9, 0.75, 0.5)
_HALVINGS = 40
# Epochs in an unbounded window: more than any budget covers.
_ENDLESS = 10**9


def check_ceiling(
    settings: Settings, mechanisms: Sequence[Mechanism] | None = None
) -> float | None:
    """Return the epsilon of the fullest period at the ceiling's delta; None without a ceiling.

    Raise SettingsError if the settings alone exceed the ceiling, or a budget cannot be met.
    """
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    if mechanisms is None:
        mechanisms = [_build(config, ceiling.unit) for config in settings.histograms]
    charges = _charges(settings, settings.histograms, mechanisms)
    counts, epsilon = _worst(ceiling, charges)
    if ceiling.holds(epsilon):
        return epsilon
    raise SettingsError(
        f"{ceiling}: these settings exceed it by themselves: for one {ceiling.unit} "
        f"{', '.join(_named(ceiling, settings, counts))} come to {_sum(epsilon, charges, counts)}; "
        f"{_fitting(ceiling, settings, charges)}"
    )


def _build(config: HistogramConfig, unit: str) -> Mechanism:
    try:
        return build(config, unit)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _charges(
    settings: Settings, configs: Sequence[HistogramConfig], mechanisms: Iterable[Mechanism]
) -> list[Charge]:
    charges = map(charge_of, configs, mechanisms)
    return [replace(charge, key=charge.key or settings.events.key) for charge in charges]


def _worst(ceiling: Ceiling, charges: Sequence[Charge]) -> tuple[tuple[int, ...], float | None]:
    periods = dict.fromkeys(_periods(ceiling, charges))
    found = fullest_of(
        FullestWindow(None, None, ceiling.epsilon_of(charges, counts), counts) for counts in periods
    )
    return found.counts, found.epsilon


def _periods(ceiling: Ceiling, charges: Sequence[Charge]) -> Iterator[tuple[int, ...]]:
    if ceiling.unit == "event":
        yield (1,) * len(charges)
    elif ceiling.period_ms is not None:
        yield tuple(
            1 if c.epoch_ms is None else most_epochs(ceiling.period_ms, c.epoch_ms) for c in charges
        )
    else:
        for epoch in charges:
            yield tuple(_touched(epoch, other) for other in charges)


def _touched(epoch: Charge, other: Charge) -> int:
    """Return the most epochs of `other` that any epoch of `epoch` touches."""
    if other.epoch_ms is None:
        return 1
    if epoch.epoch_ms is None:
        return _ENDLESS
    # Its epochs begin within the other's on a grid of the greatest common divisor.
    step = math.gcd(epoch.epoch_ms, other.epoch_ms)
    latest = other.epoch_ms - step + (epoch.start_ms - other.start_ms) % step
    return (latest + epoch.epoch_ms - 1) // other.epoch_ms + 1


def _named(ceiling: Ceiling, settings: Settings, counts: Sequence[int]) -> Iterator[str]:
    for config, count in zip(settings.histograms, counts, strict=True):
        times = 1 if ceiling.unit == "event" else count
        if times >= _ENDLESS:
            yield f"{config.name} (epochs without end)"
        elif times > 1:
            yield f"{config.name} ({times:,} epochs)"
        else:
            yield config.name


def _sum(epsilon: float | None, charges: Sequence[Charge], counts: Sequence[int]) -> str:
    if epsilon is not None:
        return f"epsilon {epsilon:.6g} at that delta"
    spent = Fraction(0)
    for charge, n in zip(charges, counts, strict=True):
        spent += n * sum(Fraction(failure) for _, failure in charge.cost.failures)
    return f"a delta of {min(float(spent), 1.0):.3g} before anything is converted, so to no epsilon at that delta"


def _fitting(ceiling: Ceiling, settings: Settings, charges: Sequence[Charge]) -> str:
    least = _least_delta(ceiling, charges)
    given = settings.histograms
    smaller = [structs.replace(one, delta=min(one.delta, least)) for one in given]
    for configs, delta in ((given, ""), (smaller, f", with delta = {least:.2g} in each,")):
        found = _fitting_epsilons(ceiling, settings, charges, configs)
        if found is None:
            continue
        each = {f"{epsilon:.3g}" for epsilon in found}
        text = f"epsilon = {each.pop()} in each"
        if each:
            named = zip(configs, found, strict=True)
            text = ", ".join(f"{config.name}: epsilon = {e:.3g}" for config, e in named)
        return f"{text}{delta} would fit"
    return "no epsilon would fit: a higher ceiling, a shorter period or longer epochs"


def _fitting_epsilons(
    ceiling: Ceiling,
    settings: Settings,
    charges: Sequence[Charge],
    configs: Sequence[HistogramConfig],
) -> list[float] | None:
    """Return epsilons that meet the ceiling, with every rho reduced in the same ratio."""
    # Assume that the parts of delta scale with it: an estimate, verified by building.
    costs = [
        _at(one.cost, config.delta / one.cost.delta)
        for one, config in zip(charges, configs, strict=True)
    ]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pairs = zip(charges, costs, strict=True)
        tried = [replace(charge, cost=_scaled(cost, middle)) for charge, cost in pairs]
        if ceiling.holds(_worst(ceiling, tried)[1]):
            low = middle
        else:
            high = middle
    if not low:
        return None
    for share in _TRIES:
        epsilons = [_down(_scaled(cost, low).epsilon * share, 3) for cost in costs]
        priced = zip(configs, epsilons, strict=True)
        smaller = [structs.replace(config, epsilon=one, rho=None) for config, one in priced]
        try:
            mechanisms = [build(config, ceiling.unit) for config in smaller]
        except ValueError:  # too small for this mechanism
            continue
        if ceiling.holds(_worst(ceiling, _charges(settings, smaller, mechanisms))[1]):
            return epsilons
    return None


def _least_delta(ceiling: Ceiling, charges: Sequence[Charge]) -> float:
    """Return a per-epoch delta that divides the ceiling's delta among all epochs."""
    counts, _ = _worst(ceiling, charges)
    times = len(counts) if ceiling.unit == "event" else sum(counts)
    return max(_down(ceiling.delta / times, 2), 1e-50)


def _at(cost: PrivacyCost, ratio: float) -> PrivacyCost:
    failures = tuple((name, share * ratio) for name, share in cost.failures)
    return replace(cost, delta=cost.delta * ratio, failures=failures)


def _scaled(cost: PrivacyCost, factor: float) -> PrivacyCost:
    left = float(Fraction(cost.delta) - sum(Fraction(failure) for _, failure in cost.failures))
    rho, epsilon = cost.rho * factor, cost.epsilon * factor
    if not cost.pure and left > 0:
        epsilon = epsilon_of(rho, left)
    return replace(cost, rho=rho, epsilon=epsilon)


def _down(value: float, digits: int) -> float:
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(value)))
