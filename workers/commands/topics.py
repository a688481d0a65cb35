"""`quietcount topics`: the topics a worker needs, next to what the cluster has."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from workers.ceiling.refusing import check_ceiling
from workers.durations import format_duration
from workers.kafka.topics import (
    INFINITE,
    Existing,
    Topic,
    cautions,
    create_missing,
    missing,
    problems,
)
from workers.settings import Settings
from workers.state.checking import announcements
from workers.topics import FIXED, connection_of, look_at_topics

EXIT_NOT_READY = 1
EXIT_MISSING = 3
PLAIN_WIDTH = 240


def show_topics(settings: Settings, *, create: bool) -> int:
    """Show every topic with its state, after creating missing ones if `create`.

    Returns:
        The exit code: 0; 1 if an existing topic is not as it must be; else 3 if one is missing.
    """
    check_ceiling(settings)
    connection = connection_of(settings)
    found = look_at_topics(settings, connection)
    plan, existing = found.plan, found.existing
    created = create_missing(connection, plan, existing) if create else []
    absent = [topic.name for topic in missing(plan, existing) if topic.name not in created]
    if create and absent:  # somebody else made them meanwhile
        existing = look_at_topics(settings, connection).existing
        absent = [topic.name for topic in missing(plan, existing) if topic.name not in created]
    outputs = {settings.output_topic(histogram) for histogram in settings.histograms}
    _print(plan, existing, created, may_be_public=outputs)
    wrong = problems(plan, existing)
    for name in found.others:
        print(f"quietcount: {name} matches events.topic too, but is not counted: {FIXED}", file=sys.stderr)
    for problem in (*wrong, *cautions(plan, existing)):
        print(f"quietcount: {problem}", file=sys.stderr)
    if absent:
        print(f"quietcount: missing: {', '.join(absent)}; --create creates what is missing", file=sys.stderr)
    for announcement in announcements(settings, connection):
        print(f"quietcount: {announcement}", file=sys.stderr)
    return EXIT_NOT_READY if wrong else EXIT_MISSING if absent else 0


def _print(
    plan: Sequence[Topic], existing: Mapping[str, Existing], created: Sequence[str], may_be_public: set[str]
) -> None:
    """Print one row per topic: as it is if it exists, else as it should be."""
    table = Table(box=None, pad_edge=False)
    for heading in ("topic", "state", "partitions", "cleanup", "retention", "holds", "readers"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "partitions" else "left")
    for topic in plan:
        here = existing.get(topic.name)
        state = "there" if here else "created" if topic.name in created else "missing"
        config = {**topic.config(), **(here.config if here else {})}
        table.add_row(
            topic.name,
            state,
            str(here.partitions if here else topic.partitions),
            config["cleanup.policy"],
            _retention(config.get("retention.ms"), config["cleanup.policy"]),
            topic.purpose,
            "anyone" if topic.name in may_be_public else "operator only",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(table)


def _retention(milliseconds: str | None, cleanup: str) -> str:
    """Return in words how long the topic keeps its records."""
    if cleanup == "compact":
        return "latest of each key"
    if milliseconds is None:
        return "the cluster's default"
    return "forever" if int(milliseconds) == INFINITE else format_duration(int(milliseconds))
