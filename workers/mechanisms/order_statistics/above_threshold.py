"""AboveThreshold: detect when a private, growing value first exceeds a threshold.

It stops at the first tick with value + mu_t > threshold + tau, with one noise tau (scale b1,
`tau_scale`) and one mu_t (b2, `mu_scale`) per tick. Ticks that do not stop cost nothing more. It
restarts after every stop; an event changes the values of one run only (the next begins with values
that are already private), so all runs together cost as much as one. Neighbours: the content of one
event emptied, or the reverse; all values of a run change by 0..Dinf (`max_count`) in one direction.

Guarantee: with e1 = Dinf / b1 and e2 = Dinf / b2, let q_x(l) be the probability of stopping at l
(or never) without the event, q_y(l) with it. q_y(l) <= e^e2 q_x(l), because mu_l alone makes up for
the event; q_x(l) <= e^(e1 + e2) q_y(l), by tau -> tau + Dinf. So the loss lies in an interval of
length e1 + 2 e2: bounded range, rho = (e1 + 2 e2)^2 / 8. Both steps shift tau upwards only, so they
hold for noise on x >= 0 (`one_sided`) as on all integers. As the papers count (any neighbours,
two-sided): e1 + 2 e2, pure.

Source: Henzinger, Sricharan, Steiner, Algorithm 3 and Lemma 4, Lap(4/eps) and Lap(8/eps) for eps/2.
A loss in an interval of length e is e^2/8-zCDP (Cesar and Rogers, "Bounding, Concentrating, and
Truncating").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workers.arrays.types import Longs, Tags
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise.discrete_laplace import round_up_scale
from workers.mechanisms.noise.keyed import NoiseStream

# Ticks drawn at once: one word alone costs about as much as two hundred together.
BLOCK_TICKS = 256
_OUTWARD = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class AboveThreshold:
    """Public parameters of a test. Noise is geometric if `one_sided`, else discrete Laplace."""

    max_count: int
    tau_scale: Fraction
    mu_scale: Fraction
    one_sided: bool

    @classmethod
    def of(cls, budget: Fraction, max_count: int, *, pure: bool) -> AboveThreshold:
        """Return the parameters for a budget of pure epsilon, else of rho.

        The span e1 + 2 e2 that the budget allows is epsilon, or sqrt(8 rho); e1 is half of it, e2 a
        quarter, so the scales Dinf / e1 and Dinf / e2 are 2 and 4 Dinf / span. Rounding is to the
        private side: a smaller span, larger scales.
        """
        if pure:
            tau, mu = (round_up_scale(part * max_count / budget) for part in (2, 4))
        else:
            span = math.sqrt(8 * float(budget)) / _OUTWARD
            tau, mu = (
                round_up_scale(Fraction(part * max_count / span * _OUTWARD))
                for part in (2, 4)
            )
        return cls(max_count, tau, mu, one_sided=not pure)

    @property
    def span(self) -> Fraction:
        """Return e1 + 2 e2: the length of the loss's interval, and the pure epsilon."""
        return self.max_count / self.tau_scale + 2 * self.max_count / self.mu_scale

    @property
    def spent(self) -> Fraction:
        """Return the cost of all runs together: rho if one-sided, else pure epsilon."""
        return self.span**2 / 8 if self.one_sided else self.span

    def tv(self, ticks: int) -> float:
        """Bound the total variation distance of the noise of a run of `ticks` from its law."""
        return (
            self._sampler(self.tau_scale).tv + ticks * self._sampler(self.mu_scale).tv
        )

    def public(self) -> dict[str, object]:
        """Return the parameters that determine stops from values and noise, as JSON."""
        return {
            "tau_scale": str(self.tau_scale),
            "mu_scale": str(self.mu_scale),
            "one_sided": self.one_sided,
            "table_version": laplace.TABLE_VERSION,
        }

    def bounds(self, runs_beta: float, ticks_beta: float) -> tuple[float, float]:
        """Return (low, high): a stop means value > threshold - low, else value <= threshold + high.

        That fails in a run with probability `runs_beta` (by tau), at a tick with `ticks_beta` (mu).
        """
        tau = float(self.tau_scale) * math.log(1 / runs_beta)
        mu = float(self.mu_scale) * math.log(1 / ticks_beta)
        # Noise on x >= 0: mu alone can make it stop too early, tau alone too late.
        if self.one_sided:
            return mu * _OUTWARD, tau * _OUTWARD
        # One more each: P(|x| > a + 1) <= exp(-a/b) for two-sided integer noise and every real a.
        return (tau + mu + 2) * _OUTWARD, (tau + mu + 2) * _OUTWARD

    def tau(self, stream: NoiseStream, cell: tuple[int, int], tags: Tags) -> Longs:
        """Return the noise of the threshold, of the run that the cell is of."""
        return self._sampler(self.tau_scale).values(stream, cell, tags)

    def mu(self, stream: NoiseStream, cell: tuple[int, int], tags: Tags) -> Longs:
        """Return the noise of the value, at the tick that the cell is of."""
        return self._sampler(self.mu_scale).values(stream, cell, tags)

    def mu_block(
        self, stream: NoiseStream, use: int, tag: Tags, block: int
    ) -> list[int]:
        """Return `mu` of one tag, (1, 2), at all ticks t of a block, by the cells (use, t).

        They are drawn together, and the same as one by one.
        """
        ticks = np.zeros((BLOCK_TICKS, 2), dtype=np.uint64)
        ticks[:, 1] = np.arange(BLOCK_TICKS, dtype=np.uint64) + np.uint64(
            block * BLOCK_TICKS
        )
        # A word is AES(tag XOR cell), so the tick may be XORed into the tag instead.
        drawn: list[int] = self.mu(stream, (use, 0), ticks ^ tag).tolist()
        return drawn

    def _sampler(self, scale: Fraction) -> laplace.Geometric | laplace.DiscreteLaplace:
        return (laplace.geometric if self.one_sided else laplace.discrete_laplace)(
            scale
        )
