"""The error of counters over the horizon: sd * mu of their running sums, mu = sqrt(2 rho_item).

Variances before rounding, for one count changed by one at one tick.

- honaker: a binary tree of log2(T) + 1 levels; each completed node of height j is estimated from
  its subtree (least squares), with variance s2 / (2 (1 - 2^-(j+1))), s2 = log2(T) + 1.
- sqrt: sum_(k < t) f_k^2 times sum_(k < T) f_k^2, f_k = binom(2k, k) / 4^k.
- blt: c(x) = prod (1 - zero x) / prod (1 - pole x) in the place of (1 - x)^-1/2, five of each,
  fitted to the worst tick. Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and
  Near-Optimal Noise Generation for Streaming Differential Privacy" (2024); McMahan, Xu, Zhang,
  "A Hassle-free Algorithm for Strong Differential Privacy in Federated Learning Systems" (2024).
- bound: for A = B C, the root mean square error is |B|_F / sqrt(T) times the largest column norm of
  C, at least |B|_F |C|_F / T >= (sum of A's singular values) / T. Those of the prefix sums are
  1 / (2 sin((2k - 1) pi / (4T + 2))). Li, Miklau, "Optimal Error of Query Sets under the
  Differentially-Private Matrix Mechanism" (2013); Henzinger, Upadhyay, Upadhyay, "Almost Tight Error
  Bounds on Differentially Private Continual Counting" (2023).
"""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.optimize import minimize

from bench.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    Line,
    grid,
    plain,
    save,
)
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.curves import ROUNDING

Floats = NDArray[np.float64]

# mu = sqrt(2 rho_item) = 1
RHO_ITEM = 0.5
LEVELS = tuple(range(4, 21, 2))
SHOWN_LEVELS = (10, 16, 20)
BUFFERS = 5


class Errors(NamedTuple):
    """sd * mu at the worst tick, and its root mean square over ticks 1..T."""

    worst: float
    rms: float


def lifted(ticks: int) -> Errors:
    counter = LiftedCounter(ticks, RHO_ITEM)
    curve = counter.curve()
    worst = float(counter.variances(curve.noisiest(ticks)[:1])[0])
    return Errors(math.sqrt(worst), math.sqrt(curve.mean(ticks) - ROUNDING))


def tree(ticks: int, radix: int | None = None) -> Errors:
    return _errors(
        TreeCounter(ticks, RHO_ITEM, radix).variances(np.arange(1, ticks + 1))
    )


def binary(ticks: int) -> Errors:
    return tree(ticks, 2)


def honaker(ticks: int) -> Errors:
    levels = ticks.bit_length() - 1
    nodes = [(levels + 1) * node_variance(height) for height in range(levels + 1)]
    # Of ticks 0..T - 1 half use the node of each height; tick T uses the root alone.
    worst = sum(nodes[:-1])
    mean = sum(nodes[:-1]) / 2 + nodes[-1] / ticks
    return Errors(math.sqrt(max(worst, nodes[-1])), math.sqrt(mean))


def node_variance(height: int) -> float:
    """Return the variance of a node's estimate from its subtree, a node's noise having 1."""
    return 1 / (2 - 2.0**-height)


def sqrt(ticks: int) -> Errors:
    odd = np.arange(1, 2 * ticks - 2, 2)
    squares = np.cumprod(np.concatenate(([1.0], odd / (odd + 1)))) ** 2
    return _errors(np.cumsum(squares) * squares.sum())


def blt(ticks: int) -> Errors:
    poles, zeros = fitted(ticks)
    squares = coefficients(poles, zeros, ticks)[1] ** 2
    return _errors(
        np.cumsum(squares) * _sum_of_squares(*_strategy(poles, zeros), ticks - 1, 1.0)
    )


def bound(ticks: int) -> Errors:
    angles = (2 * np.arange(1, ticks + 1) - 1) * (math.pi / (4 * ticks + 2))
    mean = float(np.sum(1 / (2 * np.sin(angles)))) / ticks
    return Errors(mean, mean)


def coefficients(poles: Floats, zeros: Floats, ticks: int) -> tuple[Floats, Floats]:
    """Return the first T coefficients of c(x) and of 1 / ((1 - x) c(x))."""
    k = np.arange(ticks)
    (weights, bases) = _strategy(poles, zeros)
    (noise_weights, noise_bases) = _noise(poles, zeros)
    strategy = sum(w * b ** (k - 1.0) for w, b in zip(weights, bases, strict=True))
    strategy[0] = 1
    noise = sum(w * b**k for w, b in zip(noise_weights, noise_bases, strict=True))
    return strategy, noise


@cache
def fitted(ticks: int) -> tuple[Floats, Floats]:
    """Return the poles and zeros of c with the least error at the worst tick."""
    start = np.linspace(-math.log(2 * ticks), -0.2, 2 * BUFFERS)
    first = np.concatenate((start[:1], np.log(np.diff(start))))

    def logarithm(parameters: Floats) -> float:
        poles, zeros = _interlaced(parameters)
        norm = _sum_of_squares(*_strategy(poles, zeros), ticks - 1, 1.0)
        return math.log(norm * _sum_of_squares(*_noise(poles, zeros), ticks, 0.0))

    found = minimize(
        logarithm,
        first,
        method="L-BFGS-B",
        bounds=[(-40, 0)] + [(-7, 3)] * (2 * BUFFERS - 1),
    )
    return _interlaced(found.x)


def _interlaced(parameters: Floats) -> tuple[Floats, Floats]:
    """Return poles and zeros in turn, from 1 downward: log(1 - value) grows by e^parameter."""
    steps = np.concatenate((parameters[:1], np.exp(parameters[1:])))
    values = -np.expm1(np.minimum(np.cumsum(steps), 0.5))
    return values[0::2], values[1::2]


def _strategy(poles: Floats, zeros: Floats) -> tuple[Floats, Floats]:
    """Return (w, b) with c_k = sum w b^(k-1), k > 0."""
    return _residues(poles, zeros), poles


def _noise(poles: Floats, zeros: Floats) -> tuple[Floats, Floats]:
    """Return (w, b) with coefficient k of 1 / ((1 - x) c(x)) = sum w b^k."""
    bases = np.concatenate(([1.0], zeros))
    return _residues(bases, poles), bases


def _residues(bases: Floats, zeros: Floats) -> Floats:
    """Return prod_j (b_i - zero_j) / prod_(j != i) (b_i - b_j) for every i."""
    below = bases[:, None] - bases
    np.fill_diagonal(below, 1)
    residues: Floats = np.prod(bases[:, None] - zeros, axis=1) / np.prod(below, axis=1)
    return residues


def _sum_of_squares(weights: Floats, bases: Floats, terms: int, more: float) -> float:
    """Return `more` + the sum over k < terms of (sum w b^k)^2."""
    ratios = np.outer(bases, bases)
    ones = ratios == 1
    ratios[ones] = 0
    sums = np.where(ones, terms, (1 - ratios**terms) / (1 - ratios))
    return more + float(weights @ sums @ weights)


def _errors(variances: Floats) -> Errors:
    return Errors(math.sqrt(variances.max()), math.sqrt(variances.mean()))


COUNTERS: dict[str, tuple[Callable[[int], Errors], Line]] = {
    "binary": (binary, Line("binary tree", GREY, "v", (0, (4, 1, 1, 1)))),
    "tree": (tree, Line("tree", BLUE, "s", (0, (5, 2)))),
    "honaker": (honaker, Line("binary tree, Honaker", PURPLE, "D", (0, (7, 2, 2, 2)))),
    "lifted": (lifted, Line("lifted", BLACK, "o")),
    "sqrt": (sqrt, Line("sqrt", RED, "^", (0, (3, 1)))),
    "blt": (blt, Line(f"BLT, {BUFFERS} buffers", GREEN, "x", (0, (1, 1)))),
    "bound": (bound, Line("lower bound", BLACK, "", (0, (1, 2)))),
}


def draw(directory: Path) -> None:
    """counters.svg, and the table of docs/utility.md on the terminal."""
    ticks = [1 << level for level in LEVELS]
    found = {name: [of(T) for T in ticks] for name, (of, _) in COUNTERS.items()}
    figure, axes = grid(1, 2, 9.0, 4.4)
    left, right = axes[0]
    labels: tuple[dict[str, float], dict[str, float]] = {}, {}
    for name, (_, line) in COUNTERS.items():
        width = 2.8 if name == "lifted" else 1.4
        worst = np.array([errors.worst for errors in found[name]])
        if name != "blt":  # would hide sqrt
            line.plot(left, ticks, worst, linewidth=width)
            labels[0][name] = worst[-1]
        ratio = worst / [errors.worst for errors in found["bound"]]
        if ratio[-1] < 2:
            line.plot(right, ticks, ratio, linewidth=width)
            labels[1][name] = ratio[-1]
    left.set(ylim=(0, 22), title="worst tick", ylabel="sd · μ of a count")
    right.set(ylim=(0.98, 1.4), title="worst tick / lower bound")
    for panel, ends, gap in ((left, labels[0], 1.15), (right, labels[1], 0.022)):
        panel.set_xscale("log", base=2)
        panel.set(
            xlabel="ticks in the epoch, T", xlim=(ticks[0] / 1.5, ticks[-1] * 2**8)
        )
        panel.set_xticks(ticks[::2])
        panel.minorticks_off()
        _label(panel, ends, gap)
    left.set_yticks(range(0, 21, 5))
    plain(right, y="number")
    save(figure, "counters", directory)
    print(_table(found))


def _label(axes: Axes, ends: dict[str, float], gap: float) -> None:
    """Write each line's label at its end, the labels at least `gap` apart."""
    height = math.inf
    for name, end in sorted(ends.items(), key=lambda item: -item[1]):
        height = min(end, height - gap)
        line = COUNTERS[name][1]
        axes.annotate(
            line.label,
            (2 ** LEVELS[-1], end),
            (2 ** (LEVELS[-1] + 1), height),
            color=line.color,
            fontsize=9,
            va="center",
            weight="bold" if name == "lifted" else "normal",
            arrowprops={"arrowstyle": "-", "color": line.color, "linewidth": 0.6},
        )


def _table(found: dict[str, list[Errors]]) -> str:
    rows = [
        "| counter | " + " | ".join(f"2^{level}" for level in SHOWN_LEVELS) + " |",
        "|---|" + "---|" * len(SHOWN_LEVELS),
    ]
    for name, errors in found.items():
        shown = [errors[LEVELS.index(level)] for level in SHOWN_LEVELS]
        cells = (f"{one.worst:.2f} / {one.rms:.2f}" for one in shown)
        rows.append(f"| {COUNTERS[name][1].label} | {' | '.join(cells)} |")
    return "\n".join(rows)
