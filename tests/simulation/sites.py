"""Settings of the simulated workers: shared by all schedules, since building them takes a while."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster.broker import id_of
from tests.cluster.connection import SimulatedConnection
from tests.cluster.loop import BASE_MS
from tests.simulation.checks import Roles
from workers.agents.topics import Topics, first_state_topic
from workers.agents.worker import Factory
from workers.kafka.topics import ExistingTopic, plan_topics
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings, settings_of

KEY = NoiseKey(bytes(range(32)))
NAME = "w"
#: The stream keys of all events.
KEYS = ("k0", "k1", "k2")
START = datetime.fromtimestamp(BASE_MS / 1000 - 1_200, UTC)
TICKS_S = 20, 50
SLOWLY = 60
# Of 3 and 7 ticks.
WINDOWS = {"horizon": "never", "windows": ["60s", "140s"], "hop": 2}
# Sketches with room for every event, so that each must be in them once.
SKETCHES = {"mechanism": "misra_gries", "release": "pamg", "size": 5_000}
EVENTS = "events"


@dataclass(frozen=True)
class Site:
    settings: Settings
    topics: Topics
    factory: Factory
    roles: Roles
    #: How many times slower everything is; faults last as long as ever.
    pace: int
    #: Whether there may be more owners: epochs are short enough.
    grows_owners: bool

    @property
    def ceiling(self) -> bool:
        return self.settings.privacy.max_epsilon is not None

    @property
    def rekey(self) -> bool:
        return self.settings.privacy.rekey

    @property
    def grows(self) -> bool:
        """Without rekeying, users would move at the beginning of a much later epoch."""
        return self.rekey or self.settings.privacy.unit == "event"

    def grown(self, sources: Sources, owners: Owners) -> Factory:
        """Return the factory of workers that know these events partitions and owners."""
        of_owners = self.roles.contributions, self.roles.release_state
        numbers = dict.fromkeys(
            (EVENTS, first_state_topic(self.settings)), len(sources)
        )
        numbers |= dict.fromkeys(of_owners, owners.number)
        there = self.topics.existing
        existing = there | {
            name: replace(there[name], partitions=n) for name, n in numbers.items()
        }
        known = replace(self.topics, existing=existing, origins=sources, owners=owners)
        return _factory(self.settings, known)


def _factory(settings: Settings, topics: Topics) -> Factory:
    connection = SimulatedConnection("simulated:9092")
    factory = Factory(settings, connection, topics, KEY, None, Metrics())
    # It is held during requests, and one thread cannot wait for itself.
    factory._others._lock = nullcontext()  # type: ignore[assignment]
    return factory


def make_site(
    sources: int,
    owners: int,
    unit: str,
    *,
    ceiling: bool,
    rekey: bool,
    pace: int = 1,
    split: int = 1,
    grows_owners: bool = False,
    never: bool = False,
    record: bool = False,
    sketches: bool = False,
) -> Site:
    """`record`: only the clock closes ticks, and they are delivered at fixed times."""
    privacy: dict[str, Any] = {"unit": unit, "rekey": rekey}
    if record:
        privacy |= {"neighbours": "record", "deliver_after": "4s"}
    if ceiling:
        privacy |= {"max_epsilon": 900.0, "max_delta": 0.4}
    events = {"topic": EVENTS, "key": "key", "items": "items", "timestamp": "ts"}
    events |= {"user": "user"} if unit == "user" else {}
    events |= {"max_ahead": "1s"} if grows_owners else {}
    horizons = (5, 2) if grows_owners else (4, 3)
    kafka = {"bootstrap": "simulated:9092"}
    worker = {
        "name": NAME,
        "data_dir": "unused",
        "key_file": "unused",
        "owner_partitions": owners,
        "commit_interval": f"{7 * pace}s",
    }
    document = {"worker": worker, "kafka": kafka, "events": events, "privacy": privacy}
    document["histogram"] = [
        {
            "name": name,
            "mechanism": "unk_base",
            "keys": list(KEYS) if record else "public",
            "tick": f"{tick_s * pace}s",
        }
        | {"horizon": horizon, "max_items": 2, "epsilon": 4.0, "delta": 1e-3}
        | ({"max_items_per_user": 60} if unit == "user" else {})
        | ({"split": split} if name == "fine" else {})
        | ({"start": START} if record else {})
        | (WINDOWS if never and name == "fine" else {})
        | (SKETCHES if sketches and name == "wide" else {})
        for name, tick_s, horizon in zip(
            ("fine", "wide"), TICKS_S, horizons, strict=True
        )
    ]
    settings = settings_of(document, Path("/"))
    outputs = {
        topic: one.name
        for one in settings.histograms
        for _, topic in settings.outputs(one)
    }
    plan = plan_topics(NAME, [EVENTS], sources, owners, list(outputs), {}, rekey=rekey)
    existing = {
        one.name: ExistingTopic(one.name, one.partitions, id_of(one.name))
        for one in plan
    }

    def sources_of(name: str) -> Sources:
        topic = existing[name]
        return Sources((SourceTopic(name, topic.partitions, topic.topic_id),))

    topics = Topics(
        plan=plan,
        existing=existing,
        origins=sources_of(EVENTS),
        by_user=sources_of(settings.by_user_topic) if rekey else None,
        owners=Owners(existing[settings.contributions_topic].partitions),
    )
    states = settings.contribute_state_topic, settings.release_state_topic
    of_rekey = (settings.rekey_state_topic,) if rekey else ()
    roles = Roles(
        contributions=settings.contributions_topic,
        rejects=settings.rejects_topic,
        first_state=first_state_topic(settings),
        release_state=settings.release_state_topic,
        states=(*states, *of_rekey),
        outputs=outputs,
    )
    return Site(settings, topics, _factory(settings, topics), roles, pace, grows_owners)


def make_sites() -> list[Site]:
    return [
        make_site(2, 1, "event", ceiling=False, rekey=False),
        make_site(3, 2, "event", ceiling=True, rekey=False, split=2),
        make_site(2, 2, "user", ceiling=True, rekey=False),
        make_site(2, 1, "user", ceiling=False, rekey=True),
        make_site(2, 2, "user", ceiling=True, rekey=True),
        make_site(2, 2, "event", ceiling=True, rekey=False, pace=SLOWLY),
        make_site(2, 1, "user", ceiling=False, rekey=True, pace=SLOWLY),
        make_site(2, 2, "event", ceiling=True, rekey=False, split=2, grows_owners=True),
        make_site(2, 1, "user", ceiling=False, rekey=True, grows_owners=True),
        make_site(2, 2, "event", ceiling=True, rekey=False, split=2, never=True),
        make_site(2, 2, "event", ceiling=True, rekey=False, record=True),
        make_site(2, 1, "user", ceiling=False, rekey=False, record=True),
        make_site(
            2, 2, "event", ceiling=True, rekey=False, grows_owners=True, sketches=True
        ),
    ]
