"""What the snapshots of a histogram publish, field by field, in words for the page to be signed.

The person who signs must see everything that leaves the worker under exactly these settings. A
test compares the fields with those of real snapshots.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from workers.mechanisms.config.durations import format_duration, length_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.privacy.model import HistogramPlan

_ANSWER_FIELDS = ("query", "value", "since", "error", "answers")
_LABEL_FIELDS = (
    "labels",
    "complete",
    "asked",
    "refused",
    "labels_left",
    "queries_left",
)


class Published(NamedTuple):
    """Fields of a snapshot, and what they show."""

    fields: Sequence[str]
    words: str


def published_by(config: HistogramConfig, plan: HistogramPlan) -> Iterator[Published]:
    """Yield everything that one histogram's snapshots hold, for each stream key and tick."""
    yield Published(("histogram", "key"), f"the histogram's name, and {_keys(plan)}")
    yield from _counts(config, plan)
    if plan.sum is not None:
        total = plan.sum
        yield Published(
            ("sums", "sum"),
            f"of each shown item, sum and mean of {total.field} (numbers cut to {total.low:g} to "
            f"{total.high:g}) with the mean's 95 % interval, and the sums' standard deviation",
        )
    if plan.all_items is not None:
        yield Published(
            ("all_items",),
            "the count of all items, shown or not, with its standard deviation (so shares, and the "
            "count of all others)",
        )
    if config.buckets is not None:
        made_for = ", and that the noise is made for quantiles" if config.ranks else ""
        fields = ("edges", "for") if config.ranks else ("edges",)
        yield Published(fields, f"the edges of the buckets{made_for}")
    if config.shown_quantiles:
        named = ", ".join(f"{q:g}" for q in config.shown_quantiles)
        yield Published(
            ("quantiles",), f"quantiles of the numbers ({named}) with 95 % intervals"
        )
    if config.windows and not config.without_epochs:
        yield Published(
            ("windows",),
            f"the standard deviation of changes over windows of {_lengths(config)}",
        )
    yield Published(("sd",), _deviation(plan))
    yield Published(("threshold",), _threshold(plan))
    ticks = "number, start and end of the tick and of its epoch, also of ticks that show nothing"
    if config.without_epochs:
        ticks = "number, start and end of the tick, also of ticks that show nothing"
        words = "the window's length, and from when on it counts"
        if config.unique_users:
            words += "; and that it counts different users"
        yield Published(("window",), words)
    yield Published(("epoch", "tick", "start", "end"), ticks)
    yield Published(
        ("guarantee", "mechanism", "id"),
        f"epsilon, delta, rho and unit{_periods(config)}, the mechanism, and an id made of all parameters",
    )
    pages = ("page", "pages")
    if config.split > 1:
        parts = f"which of {config.split} parts an item is in, and the number of pages"
        yield Published(("part", "parts", *pages), parts)
    else:
        yield Published(pages, "the number of pages")


def _periods(config: HistogramConfig) -> str:
    return "" if config.user_period is None else ", the period and what periods share"


def _keys(plan: HistogramPlan) -> str:
    """Return what the stream keys in a topic reveal: any name, or declared ones."""
    if plan.keys is None:
        return "the name of every stream key that ever occurs"
    return f"the stream key's name ({plan.keys:,} declared)"


def _lengths(config: HistogramConfig) -> str:
    return ", ".join(map(format_duration, config.windows))


def _counts(config: HistogramConfig, plan: HistogramPlan) -> Iterator[Published]:
    """Yield the fields that hold the counts, or the answers, in the words of the mechanism."""
    about = config.about
    if about.family == "statistic":
        words = (
            "the queries of the settings, their answers, since when, and their error"
        )
        yield Published(_ANSWER_FIELDS, f"{about.text_in_plan}: {words}")
        return
    if about.family == "labels":  # its queries ask for labels, on a budget
        words = "whether it asked, and what is left of the budget of labels and queries"
        yield Published(("query", *_LABEL_FIELDS), f"{about.text_in_plan}; {words}")
        return
    labels = "labels as they occur in events"
    if plan.domain is not None:
        labels = f"{plan.domain:,} declared labels"
    if config.without_epochs:
        counts = "noisy numbers of users" if config.unique_users else "noisy counts"
        words = f"{counts} and labels ({labels}) of the last {_lengths(config)}"
        if plan.without_epochs and (rests := plan.without_epochs.rests):
            span = length_of(rests * plan.tick_ms)
            words += (
                ", from the tick at which a label's noisy count passes a threshold until it leaves; if it "
                f"is not soon shown again, it stays away for at least {span}"
            )
        yield Published(("items",), words)
        return
    yield Published(
        ("items",), f"{about.text_in_plan}: noisy counts and labels ({labels})"
    )


def _deviation(plan: HistogramPlan) -> str:
    """Return what the field `sd` shows: its largest value."""
    if plan.without_epochs is not None:
        sds = [window.worst_sd for window in plan.without_epochs.windows]
        return f"the noise's standard deviation, by window {_each(sds)} at most"
    if all(tick.sd is None for tick in plan.noise.ticks):
        return "no standard deviation (null)"
    return f"the noise's standard deviation, {_each([plan.noise.worst_sd])} at most"


def _threshold(plan: HistogramPlan) -> str:
    """Return what the field `threshold` shows: the range of its values."""
    if plan.thresholds is None:
        return "no threshold (null)"
    if plan.without_epochs is not None:
        windows = plan.without_epochs.windows
        return f"the threshold, by window {_each(one.threshold for one in windows)}"
    return f"the threshold, {_range(plan.thresholds.least, plan.thresholds.most)}"


def _each(values: Iterable[float | None]) -> str:
    """Return the values of several windows, in their order, as text."""
    return ", ".join(f"{value:,.4g}" for value in values if value is not None)


def _range(least: float, most: float) -> str:
    return " to ".join(dict.fromkeys(f"{value:,.4g}" for value in (least, most)))
