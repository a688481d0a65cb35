"""Which combination of settings to take: the Pareto front of a backtest, and a recommendation in words. A function of the results alone.

A combination is worth what its board shows of the top n that there would be without any bounds (`recall_unbounded`), the mean over the
seeds. Where there is no such board (order statistics) it is worth the more, the smaller `error_unbounded_mean` is.

Recommended is what a person takes from the table: of the combinations that come within a stated distance of the best one, those with the
smallest epsilon, and of these with the smallest delta; of what is left the one with the best board, and among equally good ones that with
the smallest error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.backtest.results import SET, Tables

# Recall that is given up for a smaller epsilon; one item of ten, seen every second tick.
RECALL_DISTANCE = 0.05
# The same where only errors are compared: a share of the smallest.
ERROR_DISTANCE = 0.25
# Boards are equally good that differ by less than seeds do.
SAME_RECALL = 0.01
USEFUL_RECALL = 0.5
RECALL, ERROR = "recall_unbounded", "error_unbounded_mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One combination of settings, all its seeds together.

    Attributes:
        run, histogram, mechanism, epsilon, delta: as in runs.parquet.
        varied: the settings that `--vary` gave several values, without the histogram's name.
        seeds: how many.
        metrics: of the whole run and all stream keys, the mean over the seeds that have it.
    """

    run: int
    histogram: str
    mechanism: str
    epsilon: float
    delta: float = 0.0
    varied: Mapping[str, str | None] = field(default_factory=dict)
    seeds: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How it is called in a sentence."""
        parts = [f"{name} = {value}" for name, value in self.varied.items() if value is not None]
        return f"run {self.run} ({', '.join(parts or [self.mechanism])})"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What follows from the outcomes of one histogram.

    Attributes:
        metric: what `scores` are: `recall_unbounded` (more is better) or `error_unbounded_mean` (less is better).
        scores: of each run that has it.
        front: the runs than which no other has both a smaller epsilon and a better score, by epsilon.
        chosen: the run to take; None where none is of use.
        words: the recommendation, in sentences.
    """

    metric: str
    scores: Mapping[int, float]
    front: tuple[int, ...]
    chosen: int | None
    words: tuple[str, ...]


def outcomes(tables: Tables) -> list[Outcome]:
    """The combinations of a results directory, in the order of their numbers."""
    import pyarrow.compute as pc

    rows = tables.results
    whole = pc.and_(pc.and_(pc.equal(rows["tick"], 0), pc.equal(rows["rank"], 0)), pc.equal(rows["size"], 0))
    metrics: dict[int, dict[str, list[float]]] = {}
    for row in rows.filter(pc.and_(whole, pc.equal(rows["key"], ""))).to_pylist():
        metrics.setdefault(row["run"], {}).setdefault(row["metric"], []).append(row["value"])
    found: dict[int, list[dict[str, Any]]] = {}
    for row in tables.runs.to_pylist():
        found.setdefault(row["run"], []).append(row)
    several = {name for name in tables.runs.column_names if len(set(tables.runs[name].to_pylist()) - {None}) > 1}
    return [
        Outcome(
            run=run,
            histogram=of[0]["histogram"],
            mechanism=of[0]["mechanism"],
            epsilon=of[0]["epsilon"],
            delta=of[0]["delta"],
            varied={
                name.removeprefix(prefix): value
                for name, value in of[0].items()
                if name in several and name.startswith(prefix := f"{SET}{of[0]['histogram']}.")
            },
            seeds=len(of),
            metrics={metric: sum(values) / len(values) for metric, values in metrics.get(run, {}).items()},
        )
        for run, of in sorted(found.items())
    ]


def recommend(of: Sequence[Outcome]) -> Recommendation:
    """What to take.

    Args:
        of: the combinations of one histogram.
    """
    metric = RECALL if any(RECALL in one.metrics for one in of) else ERROR
    rated = [one for one in of if metric in one.metrics]
    scores = {one.run: one.metrics[metric] for one in rated}
    if not rated:
        return Recommendation(
            metric, {}, (), None, ("Nothing was measured that could be compared: was there any event?",)
        )
    worth = {run: score if metric == RECALL else -score for run, score in scores.items()}
    best = max(rated, key=lambda one: (worth[one.run], -one.epsilon, -one.run))
    front = tuple(
        one.run for one in sorted(rated, key=lambda one: (one.epsilon, one.run)) if not _beaten(one, rated, worth)
    )
    if metric == RECALL and scores[best.run] < USEFUL_RECALL:
        return Recommendation(metric, scores, front, None, tuple(_useless(best)))
    near = [one for one in rated if _near(metric, scores[one.run], scores[best.run])]
    least = min((one.epsilon, one.delta) for one in near)
    chosen = min((one for one in near if (one.epsilon, one.delta) == least), key=lambda one: _order(one, metric))
    words = (_why(chosen, best, metric, of), *_lost(chosen, best, rated, metric), *_checks(chosen))
    return Recommendation(metric, scores, front, chosen.run, words)


def _beaten(one: Outcome, of: Sequence[Outcome], worth: Mapping[int, float]) -> bool:
    """Whether another is no worse in epsilon and score, and better in one of them."""
    mine = worth[one.run]
    return any(
        other.epsilon <= one.epsilon
        and worth[other.run] >= mine
        and (other.epsilon < one.epsilon or worth[other.run] > mine)
        for other in of
    )


def _near(metric: str, score: float, best: float) -> bool:
    return score >= best - RECALL_DISTANCE - 1e-12 if metric == RECALL else score <= best * (1 + ERROR_DISTANCE) + 1e-12


def _order(one: Outcome, metric: str) -> tuple[float, float, int]:
    """Best first; recalls that differ by less than SAME_RECALL are the same."""
    error = one.metrics.get(ERROR, math.inf)
    return (-round(one.metrics[RECALL] / SAME_RECALL), error, one.run) if metric == RECALL else (error, 0.0, one.run)


# ---- words -----------------------------------------------------------------------------------------------------------


def _why(chosen: Outcome, best: Outcome, metric: str, of: Sequence[Outcome]) -> str:
    if len(of) == 1:
        return (
            f"{chosen.name} is the only combination that was run: epsilon {chosen.epsilon:g}, {_score(chosen, metric)}."
        )
    start = f"Take {chosen.name}: epsilon {chosen.epsilon:g}, {_score(chosen, metric)}."
    if chosen is best:
        return f"{start} Nothing else does better, and nothing with a smaller epsilon comes within {_distance(metric)} of it."
    if chosen.epsilon == best.epsilon:
        return f"{start} At the same epsilon {best.name} has {_score(best, metric)}, but a larger delta, or counts that are further off."
    rule = f"the smallest epsilon within {_distance(metric)} of the best"
    return f"{start} It is {rule}: {best.name} has epsilon {best.epsilon:g}, {_score(best, metric)}."


def _lost(chosen: Outcome, best: Outcome, rated: Sequence[Outcome], metric: str) -> list[str]:
    """What a larger epsilon, or other bounds, would have given."""
    words = []
    closest = min(
        (one for one in rated if ERROR in one.metrics), key=lambda one: (one.metrics[ERROR], one.run), default=None
    )
    own = chosen.metrics.get(ERROR)
    if metric == RECALL and closest is not None and own is not None:
        text = f"Its published counts are off by {_number(own)} in the mean"
        if closest is not chosen:
            text += f"; the smallest such error is {_number(closest.metrics[ERROR])}, of {closest.name} at epsilon {closest.epsilon:g}"
        words.append(text + ".")
    cheaper = [one for one in rated if one.epsilon < chosen.epsilon]
    if cheaper:
        sign = -1 if metric == RECALL else 1
        next_best = min(cheaper, key=lambda one: (sign * one.metrics[metric], one.epsilon, one.run))
        words.append(
            f"With a smaller epsilon the best is {next_best.name}: epsilon {next_best.epsilon:g}, {_score(next_best, metric)}."
        )
    lost = chosen.metrics.get("lost", 0.0)
    if lost > 0.005:
        words.append(f"Its bounds cut off {lost:.0%} of all that is counted.")
    return words


def _checks(chosen: Outcome) -> list[str]:
    """What to be careful of."""
    words = []
    found = chosen.metrics.get("deserving_shown")
    if found is not None and found < 0.9:
        words.append(f"Of the items above its threshold it shows {found:.0%} in the mean: new items come late.")
    if chosen.seeds < 3:
        words.append(
            f"This rests on {chosen.seeds} seed{'s' * (chosen.seeds > 1)}: try more (--seeds) before you trust small differences."
        )
    return words


def _useless(best: Outcome) -> list[str]:
    return [
        f"No combination is of use: the best, {best.name} at epsilon {best.epsilon:g}, has {_score(best, RECALL)}.",
        "Counts must grow against the noise: a larger epsilon, wider ticks with a shorter horizon, fewer max_items or stream keys.",
    ]


def _score(one: Outcome, metric: str) -> str:
    value = one.metrics[metric]
    return (
        f"{value:.0%} of the true top items on the board"
        if metric == RECALL
        else f"answers off by {_number(value)} in the mean"
    )


def _distance(metric: str) -> str:
    return f"{RECALL_DISTANCE * 100:g} percentage points" if metric == RECALL else f"{ERROR_DISTANCE:.0%}"


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
