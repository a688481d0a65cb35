"""The guarantee of what the demo publishes, in words."""

from __future__ import annotations

import math

from workers.mechanisms.accounting import compose, epsilon_of
from workers.mechanisms.registry import build
from workers.plan.person.words import verdict
from workers.settings import Settings


def together(settings: Settings) -> tuple[float, float]:
    """Return (epsilon, delta) of all histograms together, for one event: their costs add up.

    The deltas are added; what of them no histogram spends on failures converts the summed zCDP,
    once.
    """
    cost = compose(build(histogram).cost() for histogram in settings.histograms)
    delta = sum(histogram.delta for histogram in settings.histograms)
    return epsilon_of(cost.rho, delta - cost.delta), delta


def promise(settings: Settings, epoch_ms: int) -> str:
    """Return what whoever sees the histograms cannot learn, for one epoch of `epoch_ms`."""
    epsilon, delta = together(settings)
    each = max(histogram.epsilon or math.inf for histogram in settings.histograms)
    learned = verdict(epsilon, delta, "any one flight was in the data")
    return (
        f"Anyone who sees all private counts of a whole epoch ({epoch_ms / 60_000:.0f} min) {learned} "
        f"In figures: epsilon {each:g}, delta {_power(settings.histograms[0].delta)} for each histogram; "
        f"{math.ceil(epsilon * 100) / 100:g} and {_power(delta)} for both together."
    )


def _power(number: float) -> str:
    """1e-9 rather than 1e-09."""
    return f"{number:g}".replace("e-0", "e-")
