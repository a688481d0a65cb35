"""`quietcount topics`: compare the topics a worker needs with those on the cluster.

The plan has all topics that it needs, with the partitions that each should have; the worker's own
are all but the events topics. "Lacking" are topics that exist with fewer partitions than planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Literal

from rich.console import Console
from rich.table import Table

from workers.agents.state import start_refusals
from workers.agents.topics import FIXED, connection_of, inspect_topics
from workers.commands.failures import log
from workers.kafka import topics
from workers.kafka.clients import Connection
from workers.mechanisms.config.durations import format_duration
from workers.privacy.ceiling import check_ceiling
from workers.runtime.printing import plural
from workers.settings.settings import Settings

EXIT_NOT_READY = 1
EXIT_MISSING = 3
PLAIN_WIDTH = 240


def show_topics(settings: Settings, *, create: bool, events_topic: bool = False) -> int:
    """Show every topic with its state, after creating missing ones.

    `create` makes the topics that the worker writes, with as many partitions as the events topic
    (if missing, the cluster's default); `events_topic` also makes that. Return 1 if an existing
    topic is misconfigured, else 3 if one is missing (unless only the events topic is, with `create`
    alone), else 0.
    """
    check_ceiling(settings)
    connection = connection_of(settings)
    cluster = inspect_topics(settings, connection)
    has_events = cluster.existing.keys() >= set(cluster.events)
    # Somebody else will create the events topic, probably with as many partitions as topics have by
    # the cluster's default: plan for these.
    if create and not events_topic and not has_events:
        cluster = inspect_topics(
            settings, connection, topics.default_partitions(connection)
        )
    plan = cluster.plan
    existing = cluster.existing
    lacking = topics.find_lacking(plan, existing)
    created: list[str] = []
    if create:
        planned = [
            topic for topic in plan if events_topic or topic.purpose != topics.EVENTS
        ]
        missing = topics.missing(planned, existing)
        for topic in missing:
            if topic.purpose == topics.EVENTS:
                number = plural(topic.partitions, "partition")
                log(f"creating the events topic {topic.name} with {number}")
        existing = existing | _add_partitions(connection, lacking, existing)
        created = topics.create_missing(connection, planned, existing)
        # Another process created some meanwhile: how they are configured is not known yet.
        if len(created) < len(missing):
            existing = inspect_topics(settings, connection).existing
        lacking = []
    # What is left to say: the table, what is wrong, and what is missing.
    absent = [
        topic for topic in topics.missing(plan, existing) if topic.name not in created
    ]
    public = {*settings.output_topics, settings.budget_topic}
    if settings.signatures_topic is not None:
        public.add(settings.signatures_topic)
    _print(plan, existing, created, may_be_public=public)
    wrong = topics.find_problems(plan, existing)
    for name in cluster.unread:
        log(f"{name} matches events.topic too, but is not counted: {FIXED}")
    for problem in (*wrong, *topics.cautions(plan, existing)):
        log(problem)
    for topic in absent:
        if topic.purpose == topics.EVENTS:
            log(_no_events(topic, plan, connection))
    for topic in lacking:
        log(
            f"{topic.name} lacks partitions: a running worker adds them to a state topic if it may, --create does"
        )
    own = [topic.name for topic in absent if topic.purpose != topics.EVENTS]
    if own:
        log(f"missing: {', '.join(own)}; --create creates what is missing")
    # Other reasons for which a worker would refuse to start.
    for refusal in start_refusals(settings, connection):
        log(refusal)
    if wrong:
        return EXIT_NOT_READY
    return EXIT_MISSING if own or (absent and not create) else 0


def _add_partitions(
    connection: Connection,
    lacking: Sequence[topics.Topic],
    existing: Mapping[str, topics.ExistingTopic],
) -> dict[str, topics.ExistingTopic]:
    """Add the partitions that topics lack, and return these topics as they are then, by name."""
    changed = {}
    for topic in lacking:
        topics.add_partitions(connection, topic.name, topic.partitions)
        log(f"{topic.name} has got partitions: {topic.partitions} now")
        changed[topic.name] = replace(existing[topic.name], partitions=topic.partitions)
    return changed


def _no_events(
    topic: topics.Topic, plan: Sequence[topics.Topic], connection: Connection
) -> str:
    """Return what to do about a missing events topic, with a similar name that exists."""
    ours = {topic.name for topic in plan}
    others = [name for name in topics.partition_counts(connection) if name not in ours]
    near = get_close_matches(topic.name, others, n=1)
    typo = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"events topic {topic.name} does not exist: correct events.topic if it is a typo{typo}, else create the topic "
        f"with {plural(topic.partitions, 'partition')}; --create --events-topic does that"
    )


def _print(
    plan: Sequence[topics.Topic],
    existing: Mapping[str, topics.ExistingTopic],
    created: Sequence[str],
    may_be_public: set[str],
) -> None:
    """Print the table of topics; `may_be_public` are those whose content is for anyone."""
    table = Table(box=None, pad_edge=False)
    for heading in (
        "topic",
        "state",
        "partitions",
        "cleanup",
        "retention",
        "holds",
        "readers",
    ):
        justify: Literal["right", "left"] = (
            "right" if heading == "partitions" else "left"
        )
        table.add_column(heading, no_wrap=True, justify=justify)
    for topic in plan:
        config = topic.config()
        partitions = topic.partitions
        state = "created" if topic.name in created else "missing"
        if found := existing.get(topic.name):
            config |= found.config
            partitions = found.partitions
            state = "there"
        cleanup = config["cleanup.policy"]
        table.add_row(
            topic.name,
            state,
            str(partitions),
            cleanup,
            _retention(config.get("retention.ms"), cleanup),
            topic.purpose,
            "anyone" if topic.name in may_be_public else "operator only",
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(table)


def _retention(milliseconds: str | None, cleanup: str) -> str:
    """Return how long a topic keeps its records, in words; `milliseconds` None: it is not set."""
    if cleanup == "compact":
        return "latest of each key"
    if milliseconds is None:
        return "the cluster's default"
    return (
        "forever"
        if int(milliseconds) == topics.INFINITE
        else format_duration(int(milliseconds))
    )
