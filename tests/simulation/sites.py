"""Settings of the simulated workers: shared by all schedules, since building them takes a while."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.checks import Roles
from tests.simulation.connection import SimulatedConnection, id_of
from workers.agents.topics import Topics
from workers.agents.worker import Factory
from workers.kafka.topics import ExistingTopic, plan_topics
from workers.mechanisms.noise.keyed import NoiseKey
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings, settings_of

KEY = NoiseKey(bytes(range(32)))
NAME = "w"
TICKS_S = 20, 50
EVENTS = "events"


@dataclass(frozen=True)
class Site:
    settings: Settings
    topics: Topics
    factory: Factory
    roles: Roles

    @property
    def ceiling(self) -> bool:
        return self.settings.privacy.max_epsilon is not None

    @property
    def rekey(self) -> bool:
        return self.settings.privacy.rekey


def make_site(sources: int, owners: int, unit: str, *, ceiling: bool, rekey: bool) -> Site:
    privacy: dict[str, Any] = {"unit": unit, "rekey": rekey}
    if ceiling:
        privacy |= {"max_epsilon": 900.0, "max_delta": 0.4}
    events = {"topic": EVENTS, "key": "key", "items": "items", "timestamp": "ts"}
    events |= {"user": "user"} if unit == "user" else {}
    kafka = {"bootstrap": "simulated:9092"}
    worker = {"name": NAME, "data_dir": "unused", "key_file": "unused", "owner_partitions": owners}
    worker |= {"commit_interval": "7s"}
    document = {"worker": worker, "kafka": kafka, "events": events, "privacy": privacy}
    document["histogram"] = [
        {"name": name, "mechanism": "unk_base", "keys": "public", "tick": f"{tick_s}s"}
        | {"horizon": horizon, "max_items": 2, "epsilon": 4.0, "delta": 1e-3}
        | ({"max_items_per_user": 60} if unit == "user" else {})
        for name, tick_s, horizon in zip(("fine", "wide"), TICKS_S, (4, 3), strict=True)
    ]
    settings = settings_of(document, Path("/"))
    outputs = {settings.output_topic(one): one.name for one in settings.histograms}
    plan = plan_topics(NAME, [EVENTS], sources, owners, list(outputs), {}, rekey=rekey)
    existing = {one.name: ExistingTopic(one.name, one.partitions, id_of(one.name)) for one in plan}
    by_user = settings.by_user_topic if rekey else None
    topics = Topics(events=(EVENTS,), plan=plan, existing=existing, by_user=by_user)
    connection = SimulatedConnection("simulated:9092")
    factory = Factory(settings, connection, topics, KEY, None, Metrics())
    # It is held during requests, and one thread cannot wait for itself.
    factory._others._lock = nullcontext()  # type: ignore[assignment]
    states = settings.contribute_state_topic, settings.release_state_topic
    of_rekey = (settings.rekey_state_topic,) if rekey else ()
    roles = Roles(
        contributions=settings.contributions_topic,
        rejects=settings.rejects_topic,
        release_state=settings.release_state_topic,
        states=(*states, *of_rekey),
        outputs=outputs,
    )
    return Site(settings, topics, factory, roles)


def make_sites() -> list[Site]:
    return [
        make_site(2, 1, "event", ceiling=False, rekey=False),
        make_site(3, 2, "event", ceiling=True, rekey=False),
        make_site(2, 2, "user", ceiling=True, rekey=False),
        make_site(2, 1, "user", ceiling=False, rekey=True),
        make_site(2, 2, "user", ceiling=True, rekey=True),
    ]
