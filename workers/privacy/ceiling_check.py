"""Startup check: refuse settings that exceed their own ceiling, and suggest what would fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import msgspec

from workers.mechanisms.accounting import epsilon_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import build
from workers.privacy.ceiling import Ceiling, CeilingCharge, most_epochs
from workers.privacy.total import Built, Part
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
    """Check that the settings alone stay within their ceiling in every period.

    Return the epsilon of a period at the ceiling's delta; None without a ceiling. Mechanisms are
    built if not given.

    Raises:
        SettingsError: the settings exceed the ceiling, or a budget cannot be met.
    """
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    configs = settings.histograms
    if mechanisms is None:
        mechanisms = [_build(config, ceiling.unit) for config in configs]
    built = [
        Built(config, mechanism) for config, mechanism in zip(configs, mechanisms, strict=True)
    ]
    counts, epsilon = _worst(ceiling, settings, [one.part for one in built])
    if ceiling.holds(epsilon):
        return epsilon
    raise SettingsError(
        f"{ceiling}: these settings exceed it by themselves: for one {ceiling.unit} "
        f"{', '.join(_named(ceiling, settings, counts))} come to {_sum(epsilon, built, counts)}; "
        f"{_fitting(ceiling, settings, built)}"
    )


def _build(config: HistogramConfig, unit: str) -> Mechanism:
    try:
        return build(config, unit)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _worst(
    ceiling: Ceiling, settings: Settings, prices: Sequence[Part]
) -> tuple[tuple[int, ...], float | None]:
    """Return the epochs of each histogram in a fullest period, and its epsilon."""
    charges = [
        _charge(settings, config, price)
        for config, price in zip(settings.histograms, prices, strict=True)
    ]
    found = {counts: ceiling.epsilon_of(charges, counts) for counts in _periods(ceiling, charges)}
    return max(found.items(), key=lambda one: math.inf if one[1] is None else one[1])


def _charge(settings: Settings, config: HistogramConfig, price: Part) -> CeilingCharge:
    return CeilingCharge(
        worker=settings.worker.name,
        histogram=config.name,
        generation=config.generation,
        identity=b"",
        grid=TickGrid(
            tick_ms=config.tick_ms, start_ms=config.start_ms, horizon=config.horizon_ticks
        ),
        unit=settings.privacy.unit,
        price=price,
        key=config.key or settings.events.key,
        keys=None if config.keys == "public" else frozenset(config.keys),
        first=1,
        last=1,
    )


def _periods(ceiling: Ceiling, charges: Sequence[CeilingCharge]) -> Iterator[tuple[int, ...]]:
    """Yield upper bounds on the epochs of each histogram that a period touches."""
    if ceiling.unit == "event":
        yield (1,) * len(charges)
    elif ceiling.period_ms is not None:
        yield tuple(
            1 if c.epoch_ms is None else most_epochs(ceiling.period_ms, c.epoch_ms) for c in charges
        )
    else:
        for epoch in charges:
            yield tuple(_touched(epoch, other) for other in charges)


def _touched(epoch: CeilingCharge, other: CeilingCharge) -> int:
    """Return the most epochs of `other` that any epoch of `epoch` touches."""
    if other.epoch_ms is None:
        return 1
    if epoch.epoch_ms is None:
        return _ENDLESS
    # Its epochs begin within the other's on a grid of the greatest common divisor.
    step = math.gcd(epoch.epoch_ms, other.epoch_ms)
    latest = other.epoch_ms - step + (epoch.grid.start_ms - other.grid.start_ms) % step
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


def _sum(epsilon: float | None, built: Sequence[Built], counts: Sequence[int]) -> str:
    if epsilon is not None:
        return f"epsilon {epsilon:.6g} at that delta"
    spent = sum(
        (
            Fraction(share) * n
            for one, n in zip(built, counts, strict=True)
            for share in one.part.named.values()
        ),
        Fraction(0),
    )
    return f"a delta of {min(float(spent), 1.0):.3g} before anything is converted, so to no epsilon at that delta"


# ---- what would fit ------------------------------------------------------------------------------


def _fitting(ceiling: Ceiling, settings: Settings, built: Sequence[Built]) -> str:
    """Return in words the epsilons that would fit, and a delta if necessary."""
    for delta in (None, _least_delta(ceiling, settings, built)):
        configs = (
            settings.histograms
            if delta is None
            else [_with(one, delta=min(one.delta, delta)) for one in settings.histograms]
        )
        found = _fitting_epsilons(ceiling, settings, built, configs)
        if found is None:
            continue
        each = {f"{epsilon:.3g}" for epsilon in found}
        text = (
            f"epsilon = {each.pop()} in each"
            if len(each) == 1
            else ", ".join(
                f"{c.name}: epsilon = {e:.3g}" for c, e in zip(configs, found, strict=True)
            )
        )
        return f"{text}{'' if delta is None else f', with delta = {delta:.2g} in each,'} would fit"
    return "no epsilon would fit: a higher ceiling, a shorter period or longer epochs"


def _fitting_epsilons(
    ceiling: Ceiling, settings: Settings, built: Sequence[Built], configs: Sequence[HistogramConfig]
) -> list[float] | None:
    """Return epsilons that meet the ceiling, with every rho reduced in the same ratio."""
    # Assume that the parts of delta scale with it: an estimate, verified by building.
    parts = [
        _at(one.part, config.delta / one.config.delta)
        for one, config in zip(built, configs, strict=True)
    ]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if ceiling.holds(_worst(ceiling, settings, [_scaled(part, middle) for part in parts])[1]):
            low = middle
        else:
            high = middle
    if not low:
        return None
    for share in _TRIES:
        epsilons = [_down(_scaled(part, low).epsilon * share, 3) for part in parts]
        tried = [
            _with(config, epsilon=epsilon)
            for config, epsilon in zip(configs, epsilons, strict=True)
        ]
        try:
            prices = [Built(config, build(config, ceiling.unit)).part for config in tried]
        except ValueError:  # too small for this mechanism
            continue
        if ceiling.holds(_worst(ceiling, settings, prices)[1]):
            return epsilons
    return None


def _with(
    config: HistogramConfig, *, epsilon: float | None = None, delta: float | None = None
) -> HistogramConfig:
    if epsilon is not None:
        config = msgspec.structs.replace(config, epsilon=epsilon, rho=None)
    return config if delta is None else msgspec.structs.replace(config, delta=delta)


def _least_delta(ceiling: Ceiling, settings: Settings, built: Sequence[Built]) -> float:
    """Return a per-epoch delta that divides the ceiling's delta among all epochs."""
    counts, _ = _worst(ceiling, settings, [one.part for one in built])
    times = len(counts) if ceiling.unit == "event" else sum(counts)
    return max(_down(ceiling.delta / times, 2), 1e-50)


def _at(part: Part, ratio: float) -> Part:
    failures = {name: share * ratio for name, share in part.named.items()}
    return replace(part, delta=part.delta * ratio, failures=failures)


def _scaled(part: Part, factor: float) -> Part:
    rho, left = (
        part.rho * factor,
        float(Fraction(part.delta) - sum(map(Fraction, part.named.values()))),
    )
    epsilon = part.epsilon * factor if part.pure or left <= 0 else epsilon_of(rho, left)
    return replace(part, rho=rho, epsilon=epsilon)


def _down(value: float, digits: int) -> float:
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(value)))
