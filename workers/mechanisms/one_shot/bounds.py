"""Error bounds of one-shot releases, of their sums, and of picks, over all releases of an epoch.

R releases (one per tick), n labels, k picks a release among d candidates, the kbar items of largest
count and BOTTOM, which ends the picks; b the scale of picks, H = h_(kbar+1) the largest count that
is no candidate's. All bounds hold together with probability 1 - beta. Counts have the exact
quantile of their integer noise. A hidden count is at most the threshold plus noise. Where picks
decide (`known_gumbel`, `limit_dom`), an item that is not picked exceeds a picked one by more than
a = b ln((d - 1) k R / beta) with probability at most (d - 1) e^(-a/b) a pick, by peeling; or it
lies above H by at most BOTTOM's height plus a over kbar others. A privately chosen kbar: the bound
holds for kbar_max, and the choice adds b ln(candidates R / beta). The papers' own bounds are in
`bench.printed`.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from workers.mechanisms.bounds import laplace_sum, normal_bound, subset_bound
from workers.mechanisms.misra_gries.releases import (
    PureLaw,
    SparseGaussianLaw,
    shared_quantile,
)
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.one_shot.algorithms import (
    Algorithm,
    Name,
    Noisy,
    Parameters,
    Picking,
    Sketched,
    quantile,
)

_D1 = "Cardoso, Rogers: Lemma D.1"
#: Of counts, and of what is hidden or not chosen.
SOURCES: Mapping[Name, tuple[str, str]] = MappingProxyType(
    {
        "known_gauss": ("Cardoso, Rogers: Theorems 2 and 7", "Theorem 7"),
        "known_gumbel": ("Cardoso, Rogers: Theorems 2 and 8", _D1),
        "positive_laplace": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
        "positive_gauss": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
        "unk_gauss": (
            "Cardoso, Rogers: Theorems 2 and 5",
            "Cardoso, Rogers: Theorem 5; Rogers: Theorem 8",
        ),
        "limit_dom_laplace": ("Durfee, Rogers: Lemma 6.2", "Durfee, Rogers: Lemma 6.2"),
        "limit_dom": ("Cardoso, Rogers: Theorems 2 and 9", f"{_D1}, Algorithm 6"),
        "pmg": ("Lebeda, Tetek: Theorem 8", "Lebeda, Tetek: Theorem 8"),
        "gshm": ("Lebeda, Tetek: Theorem 12", "Lebeda, Tetek: Theorem 12"),
        "pure": ("Lebeda, Tetek: Section 6", "Lebeda, Tetek: Section 6"),
    }
)
SOURCE_OF_PICKS = f"Rogers: Theorems 9 and 10; {_D1}"


def largest_noise(
    algorithm: Noisy | Picking, values: float, beta: float, *, difference: bool = False
) -> float:
    """Bound `values` noise values in size, by the exact integer law.

    `difference`: bound as many differences of two noise values, from above.
    """
    # A noise value has two tails.
    each = beta / (values if difference else 2 * values)
    # The quantile is the least x that is not reached.
    return quantile(algorithm.table, each, difference=difference) - 1


def sum_error(
    algorithm: Algorithm, used: int, copies: int, values: float, beta: float
) -> float:
    """Bound the errors of `values` sums, each over the releases of up to `used` blocks of ticks.

    A sum is too low by what thresholds hide and by noise (`copies` noise values a block), too high
    by the noise of those blocks that show the item: any subset of them.
    """
    hidden = used * (algorithm.threshold or 0)
    if isinstance(algorithm.table, DiscreteLaplace):
        scale = float(algorithm.table.scale)
        low = hidden + laplace_sum(copies * used, scale, values, beta)
        # 2^used subsets.
        return max(low, laplace_sum(used, scale, values * 2.0**used, beta))
    low = hidden + normal_bound(copies * used * algorithm.sd**2, values, beta)
    return max(low, subset_bound(algorithm.sd**2, used, values, beta))


def sketch_error(algorithm: Sketched, used: int, values: float, beta: float) -> float:
    """Bound the errors of `values` sums over `used` sketches, beside what these leave out.

    A sum is too low by what thresholds hide and by noise, too high by the noise of the sketches
    that show it. "pure": a label that is not shown ranks below one whose count is 0, so it lacks
    at most two noises. Rounding moves a release by at most a half.
    """
    law = algorithm.law
    if isinstance(law, SparseGaussianLaw):
        return used / 2 + sum_error(algorithm, used, 1, values, beta)
    if isinstance(law, PureLaw):
        # In units of 1 / (size + 1).
        largest = quantile(law.table, beta / (2 * values), difference=False) - 1
        return used * (2 * largest / (algorithm.size + 1) + 0.5)
    # "pmg": a counter has noise of its own and that of all counters of its sketch, two a sketch.
    if used == 1:
        # With one counter (1, 0): its two noise values must reach x together.
        return law.threshold + shared_quantile(law.scale, 1, 0, beta / (2 * values)) - 1
    scale = float(law.scale)
    low = used * law.threshold + laplace_sum(2 * used, scale, values, beta)
    # Any of the 2^used subsets of sketches may show an item.
    return max(low, laplace_sum(2 * used, scale, values * 2.0**used, beta))


def choice_error(
    p: Parameters, algorithm: Picking, releases: int, beta: float
) -> float:
    """Bound how far an item that is not picked may lie above a shown one.

    With BOTTOM (`algorithm.bar` is its height above H): how far a candidate may lie above H.
    """
    scale = float(algorithm.scale)
    picks = p.k * releases
    # 0 means no BOTTOM, as in `known_gumbel`: all declared labels are candidates.
    if not algorithm.bar:
        return scale * math.log(max(1, p.domain - 1) * (picks / beta))
    return algorithm.bar + pick_error(scale, p, picks, releases, beta)


def pick_error(
    scale: float, p: Parameters, picks: int, releases: int, beta: float
) -> float:
    """Bound the shortfall of picks among kbar items and BOTTOM, and of the choice of kbar.

    That is how much larger a candidate that is passed over may be than one that is picked. `picks`
    are those of all `releases`; with a private kbar each of the two has half of beta.
    """
    if not p.private:
        return scale * math.log(p.kbar * picks / beta)
    chosen = math.log(2 * max(1, p.kbar - p.k) * releases / beta)
    return scale * (math.log(2 * p.kbar * picks / beta) + chosen)


def above_the_rest(p: Parameters) -> str:
    return f"how far an item not shown lies above the ({p.kbar:,} + 1)-th largest"
