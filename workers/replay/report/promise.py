"""Write the page of a promise, DIR/promise.html: one sheet of paper, for the person who signs it.

It says what is promised, to whom, and what is not; who may see what, and how long it is kept; the
settings that decide it, with their fingerprint; and what differs from earlier settings. It reads
only settings files, so it cannot know whether a worker runs with them, and says so. What no file
states is left blank (_BLANK), for the operator to fill in.
"""

from collections.abc import Iterator
from pathlib import Path

from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.views import ALL_KEYS
from workers.privacy.ceiling import Ceiling
from workers.privacy.model import HistogramPlan, Plan
from workers.privacy.plan.text import seen_of
from workers.privacy.promise import changes, fingerprint
from workers.privacy.published import published_by
from workers.privacy.total import DAY_MS, loss_caption
from workers.replay.report.pages import Table, page, sentences, table_of
from workers.runtime.printing import plural
from workers.runtime.process import version
from workers.settings.files import write_atomically
from workers.settings.settings import Settings, view_of

PAGE = "promise.html"
_VALUE_LETTERS = 48
# For what no settings file knows.
_BLANK = "__________"


def write_promise(
    directory: Path,
    settings: Settings,
    plan: Plan,
    alone: float | None,
    since: Settings | None,
) -> None:
    """Write the page of `settings`, whose plan is `plan`.

    `alone` is the epsilon that these settings come to in the fullest period of their ceiling (None:
    they have none), `since` the earlier settings to compare them with.
    """
    total = plan.total
    epsilon = None if total.delta >= 1 else total.epsilon
    before = None
    if since is not None:
        rows = [
            [change.setting, _shown(change.before), _shown(change.after), change.alters]
            for change in changes(since, settings)
        ]
        before = Table(
            ("setting", "before", "now", "what that alters"), rows, words=range(4)
        )
    body = page(
        "promise.html",
        title=f"What the operator of worker {plan.worker} promises",
        contains="Of settings alone: no figure on this page comes from events.",
        exact=False,
        total=total,
        person=table_of(total.person, total.unit),
        deliver_after=None
        if plan.deliver_after_ms is None
        else format_duration(plan.deliver_after_ms),
        explained=loss_caption(total.person, total.unit),
        user=settings.user_field,
        shows_first=any(config.start is None for config in settings.histograms),
        promise=sentences(epsilon, total.delta, total.unit, seen_of(plan.histograms)),
        without=total.person[0].without_epochs,
        labels_leave=any(_labels_leave(one) for one in plan.histograms),
        warnings=total.warnings,
        ceiling=Ceiling.of(settings.privacy),
        alone=alone,
        histograms=_histograms(settings, plan),
        published=list(published(settings, plan)),
        seen=list(seen_by(settings)),
        kept=list(kept(settings)),
        budget_topic=settings.budget_topic,
        version=version(),
        public_keys=any(histogram.keys is None for histogram in plan.histograms),
        fingerprint=fingerprint(settings),
        earlier=None if since is None else fingerprint(since),
        changes=before,
    )
    write_atomically(directory / PAGE, body)


def _labels_leave(plan: HistogramPlan) -> bool:
    """Return whether items may leave the board again: without epochs, of an unknown domain."""
    return plan.without_epochs is not None and plan.without_epochs.rests is not None


def _histograms(settings: Settings, plan: Plan) -> Table:
    """Return a table: what each histogram counts, how much of an event, and at what cost."""
    bounded = f"of one {plan.total.unit} at most"
    headings = (
        "histogram",
        "counts",
        "by",
        "mechanism",
        "epoch",
        bounded,
        "epsilon",
        "delta",
    )
    rows = []
    for config, planned in zip(settings.histograms, plan.histograms, strict=True):
        items = config.max_items_per_user or config.max_items
        times = "once" if config.max_count == 1 else f"{config.max_count:,} times"
        rows.append(
            [
                f"{planned.name}, generation {config.generation}",
                str(view_of(settings.events, config).items),
                _keys(config, config.key or settings.events.key),
                planned.mechanism,
                epoch_of(planned) + _beginning(config, planned),
                f"{plural(items, 'item')}, each {times}",
                f"{planned.guarantee.epsilon:.6g}",
                f"{planned.guarantee.delta:g}",
            ]
        )
    return Table(headings, rows, words=range(6))


def published(settings: Settings, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what each topic holds, grouped by equal content; last what all of them hold."""
    topics: dict[tuple[str, ...], list[str]] = {}
    for config, one in zip(settings.histograms, plan.histograms, strict=True):
        words = tuple(part.words for part in published_by(config, one))
        of_config = ", ".join(topic for _, topic in settings.outputs(config))
        named = f"{of_config} (each stream key, each tick of {format_duration(one.tick_ms)})"
        topics.setdefault(words, []).append(named)
    first, *others = topics
    shared = [
        part for part in first if others and all(part in other for other in others)
    ]
    for words, names in topics.items():
        own = "; ".join(part for part in words if part not in shared)
        yield f"On {', '.join(names)}", f"{own}."
    if shared:
        yield "On all of these", f"{'; '.join(shared)}."


def _keys(config: HistogramConfig, key: str) -> str:
    """Describe by what a histogram counts: its key, and how many of them are declared."""
    if key == ALL_KEYS:
        return "nothing: all events"
    return f"{key}: " + (
        "all" if config.keys == "public" else f"{len(config.keys):,} declared"
    )


def epoch_of(plan: HistogramPlan) -> str:
    """Describe the epoch of a histogram, or its windows."""
    tick = format_duration(plan.tick_ms)
    if plan.without_epochs is not None:
        windows = (format_duration(window.ms) for window in plan.without_epochs.windows)
        users = plan.without_epochs.users
        if users is None:
            return f"none: the last {', '.join(windows)}; ticks of {tick}"
        who = "users of the last" if users.unique else "the last"
        return (
            f"none: {who} {', '.join(windows)}; promised for one period of {format_duration(users.ms)}, and n of "
            f"them cost up to {users.overlap:.3g} n times the rho of one; ticks of {tick}"
        )
    if plan.horizon is None:
        return f"without end, ticks of {tick}"
    return f"{format_duration(plan.horizon * plan.tick_ms)}, ticks of {tick}"


def _beginning(config: HistogramConfig, plan: HistogramPlan) -> str:
    """Return ", from midnight UTC" if all epochs begin at midnight; else nothing."""
    if plan.without_epochs is not None:
        return ""
    if (
        config.start_ms % DAY_MS == 0
        and (plan.horizon or 1) * plan.tick_ms % DAY_MS == 0
    ):
        return ", from midnight UTC"
    return ""


def seen_by(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (who, what): what anyone may see, and what only the operator; "" is the one before."""
    outputs = settings.output_topics
    # A pattern of topics has no names.
    names = settings.events.topics.names or (str(settings.events.topics),)
    inner = settings.internal_topics
    beside = f"{settings.budget_topic}: what of the budget is spent and left"
    if settings.signatures_topic is not None:
        beside += f"; {settings.signatures_topic}: hashes of the snapshots, signed"
    yield (
        "anyone",
        f"the snapshots, on {', '.join(outputs)}: all that is listed above; {beside}; this page, at {_BLANK}",
    )
    yield (
        "the operator",
        f"the events, on {', '.join(names)}; {', '.join(inner)}: exact",
    )
    key = "the key file, with which the noise can be removed; logs, metrics; what check, audit, replay and rejects print"
    yield "", f"{key}. An auditor, while auditing: key, contributions, states"


def kept(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (what, how long), with blanks for what no settings file knows (docs/erasure.md)."""
    signed = "not signed: nothing shows whether a copy was changed"
    if settings.signatures_topic is not None:
        signed = f"signed: with the public key and the signatures, at {_BLANK}, anyone can check a copy"
    yield "the snapshots", f"for ever, unless withdrawn; {signed}"
    yield "exact sums", _sums_kept(settings)
    if settings.user_field is not None:
        until = f"gone at most {_BLANK} after the event arrived"
        if any(config.charge_grid.horizon is None for config in settings.histograms):
            until = "for ever"
        yield (
            "digests of users",
            f"{until}; whoever can read them and knows a user can find out what was counted",
        )
    records = f"gone at most {_BLANK} after the event arrived; they say who it was"
    if settings.privacy.rekey:
        # BY_USER_RETENTION_MS of `kafka.topics`.
        records += ". The copy by user is made for 7 days"
    yield "events, rejects", records
    yield "copies", f"on disks, in backups, logs and print-outs: erased {_BLANK}"
    key = f"destroyed at most {_BLANK} after the last tick made with it, with all exact data that serve nothing else"
    yield "the key file", f"{key}; if it gets out, what was published counts as exact"
    audited = f"by {_BLANK}, every {_BLANK}: that published counts are the exact sums and their noise"
    age_ms = settings.worker.keep_contributions_ms
    if age_ms is not None:
        audited += f". What is older than {format_duration(age_ms)} may be gone by then"
    yield "audited", audited


def _sums_kept(settings: Settings) -> str:
    """Return how long contributions are kept, and whether they tell users apart."""
    kept_for = "for ever"
    if settings.worker.keep_contributions_ms is not None:
        kept_for = f"gone at most {_BLANK} after the event arrived"
    if any(config.unique_users for config in settings.histograms):
        return f"{kept_for}; each with a digest of its user"
    return f"{kept_for}; by label and tick, without users"


def _shown(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= _VALUE_LETTERS else f"{text[: _VALUE_LETTERS - 3]}..."
