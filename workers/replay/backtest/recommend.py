"""Recommend a combination of settings, with the Pareto front and a reason in words.

The score is the share of the unbounded top n on the board (`recall_unbounded`), mean over the
seeds. Without such a board (order statistics), it is `error_unbounded_mean`; smaller is better. As
a person would read the table: among the combinations within a stated distance of the best score,
take the smallest epsilon, then the smallest delta, then the best board, and among equally good
boards the smallest error.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from workers.mechanisms.config.durations import format_duration
from workers.replay.backtest.results import Outcome

# Recall given up for a smaller epsilon: one item of ten, seen every second tick.
RECALL_DISTANCE = 0.05
# The same if only errors are compared: a share of the smallest.
ERROR_DISTANCE = 0.25
# Boards are equally good if they differ by less than seeds do.
SAME_RECALL = 0.01
USEFUL_RECALL = 0.5
RECALL = "recall_unbounded"
ERROR = "error_unbounded_mean"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Conclusion from the outcomes of one histogram; `scores` are of `metric`.

    `front`, the Pareto front, holds the runs that no other beats in epsilon and score, by epsilon;
    `chosen` is None if no combination meets the goal.
    """

    metric: str
    scores: Mapping[int, float]
    front: tuple[int, ...]
    chosen: int | None
    words: tuple[str, ...]


def recommend(outcomes: Sequence[Outcome]) -> Recommendation:
    """Recommend one of a histogram's outcomes, all of the same events."""
    metric = RECALL if any(RECALL in outcome.metrics for outcome in outcomes) else ERROR
    rated = [outcome for outcome in outcomes if metric in outcome.metrics]
    scores = {outcome.number: outcome.metrics[metric].mean for outcome in rated}
    if not rated:
        nothing = "Nothing was measured that could be compared: was there any event?"
        # No scores, no front, none chosen.
        return Recommendation(metric, {}, (), None, (nothing,))

    def worth(outcome: Outcome) -> float:
        """Return the score, negated for errors: larger is better."""
        return scores[outcome.number] * (1 if metric == RECALL else -1)

    by_epsilon = sorted(
        rated, key=lambda outcome: (outcome.row.epsilon, outcome.number)
    )
    best = max(by_epsilon, key=worth)  # the first of equals
    points = [(-outcome.row.epsilon, worth(outcome)) for outcome in by_epsilon]
    pairs = zip(by_epsilon, points, strict=True)
    front = tuple(
        outcome.number for outcome, point in pairs if not _dominated(point, points)
    )
    if metric == RECALL and scores[best.number] < USEFUL_RECALL:
        return Recommendation(
            metric, scores, front, None, (*_no_choice(best), *_epochs(outcomes))
        )
    given_up = (
        RECALL_DISTANCE if metric == RECALL else ERROR_DISTANCE * scores[best.number]
    )
    # A little less, so that a distance of exactly that much is not lost to rounding.
    least = worth(best) - given_up - 1e-12
    near = [outcome for outcome in rated if worth(outcome) >= least]
    chosen = min(
        near,
        key=lambda outcome: (
            outcome.row.epsilon,
            outcome.row.delta,
            *_tie_break(outcome, metric),
        ),
    )
    words = [
        _why(chosen, best, metric, outcomes),
        *_trade_offs(chosen, by_epsilon, worth, metric),
    ]
    words += [*_epochs(outcomes), *_checks(chosen)]
    return Recommendation(metric, scores, front, chosen.number, tuple(words))


def _dominated(
    mine: tuple[float, float], points: Sequence[tuple[float, float]]
) -> bool:
    """Return whether another point is no worse in both coordinates, and better in one of them.

    Larger is better in both.
    """
    return any(
        other != mine and other[0] >= mine[0] and other[1] >= mine[1]
        for other in points
    )


def _tie_break(one: Outcome, metric: str) -> tuple[float, float, int]:
    """Order combinations of equal epsilon and delta: best board first, then smallest error."""
    error = _mean(one, ERROR, math.inf)
    if metric == RECALL:
        # In steps of SAME_RECALL, within which boards are equal.
        return -round(_mean(one, RECALL) / SAME_RECALL), error, one.number
    return error, 0.0, one.number


def _why(
    chosen: Outcome, best: Outcome, metric: str, outcomes: Sequence[Outcome]
) -> str:
    """Return the sentence that recommends `chosen`; `best` has the best score at any epsilon."""
    name = _name(chosen)
    figures = _figures(chosen, metric)
    if len(outcomes) == 1:
        return f"{name} is the only combination that was run: {figures}."
    points = f"{RECALL_DISTANCE * 100:g} percentage points"
    distance = points if metric == RECALL else f"{ERROR_DISTANCE:.0%}"
    start = f"Take {name}: {figures}."
    if chosen is best:
        return (
            f"{start} Nothing else does better, and nothing with a smaller epsilon comes within "
            f"{distance} of it."
        )
    if chosen.row.epsilon == best.row.epsilon:
        return (
            f"{start} At the same epsilon {_name(best)} has {_score(best, metric)}, but a larger "
            "delta, or counts that are further off."
        )
    return (
        f"{start} It is the smallest epsilon within {distance} of the best: {_name(best)} has "
        f"{_figures(best, metric)}."
    )


def _trade_offs(
    chosen: Outcome,
    by_epsilon: Sequence[Outcome],
    worth: Callable[[Outcome], float],
    metric: str,
) -> Iterator[str]:
    """Yield sentences on what `chosen` costs: its error, and the share that its bounds cut off.

    Also the best run with a smaller epsilon; `worth` is a run's score, larger being better.
    """
    # If the score is the error itself, `_why` has stated it.
    with_error = [outcome for outcome in by_epsilon if ERROR in outcome.metrics]
    if metric == RECALL and chosen in with_error:
        closest = min(with_error, key=lambda one: (_mean(one, ERROR), one.number))
        text = f"Its published counts are off by {_number(_mean(chosen, ERROR))} in the mean"
        if closest is not chosen:
            least = f"{_number(_mean(closest, ERROR))}, of {_name(closest)}"
            text += f"; the smallest such error is {least} at epsilon {closest.row.epsilon:g}"
        yield text + "."
    limit = chosen.row.epsilon
    cheaper = [outcome for outcome in by_epsilon if outcome.row.epsilon < limit]
    if cheaper:
        best = max(cheaper, key=worth)
        figures = _figures(best, metric)
        yield f"With a smaller epsilon the best is {_name(best)}: {figures}."
    lost = _mean(chosen, "lost", 0.0)
    if lost > 0.005:  # else it would be written as 0 %
        yield f"Its bounds cut off {lost:.0%} of all that is counted."


def _epochs(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Warn that the same epsilon is a different promise if epoch lengths differ."""
    lengths = {one.epoch_ms for one in outcomes}
    ends = sorted(length for length in lengths if length is not None)
    if len(lengths) > 1:
        longest = "no end" if None in lengths else format_duration(ends[-1])
        yield (
            f"Careful: these runs have epochs of different lengths ({format_duration(ends[0])} to "
            f"{longest}), and an epsilon buys one epoch. Compare only runs with equal epochs: with "
            "half the length the same epsilon is spent twice as often."
        )


def _checks(chosen: Outcome) -> Iterator[str]:
    """Yield reasons to distrust the recommendation."""
    found = _mean(chosen, "deserving_shown", 1.0)
    if found < 0.9:
        share = f"{found:.0%} in the mean"
        yield f"Of the items above its threshold it shows {share}: new items come late."
    if chosen.seeds < 3:
        seeds = f"{chosen.seeds} seed{'s' * (chosen.seeds > 1)}"
        yield f"This rests on {seeds}: try more (--seeds) before you trust small differences."


def _no_choice(best: Outcome) -> tuple[str, ...]:
    """Return why nothing is recommended, and what would help."""
    best_choice = f"{_name(best)} at epsilon {best.row.epsilon:g}"
    advice = (
        "Counts must grow against the noise: a larger epsilon, wider ticks with a shorter horizon, "
        "fewer max_items or stream keys."
    )
    return (
        f"No combination meets the goal: the best, {best_choice}, has {_score(best, RECALL)}.",
        advice,
    )


def _name(one: Outcome) -> str:
    parts = [f"{name} = {value}" for name, value in one.given.items()]
    return f"run {one.number} ({', '.join(parts or [one.row.mechanism])})"


def _figures(one: Outcome, metric: str) -> str:
    return f"epsilon {one.row.epsilon:g}, {_score(one, metric)}"


def _score(one: Outcome, metric: str) -> str:
    """Return the score as the end of a sentence: recall, or the error of answers."""
    score = _mean(one, metric)
    if metric == RECALL:
        return f"{score:.0%} of the true top items on the board"
    return f"answers off by {_number(score)} in the mean"


def _mean(one: Outcome, metric: str, default: float = math.nan) -> float:
    """Return the mean of a metric over the seeds."""
    return one.metrics[metric].mean if metric in one.metrics else default


def _number(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
