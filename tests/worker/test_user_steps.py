"""User caps with a kill at every step of a commit: events count once, caps hold."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.events.reading import ANY, event_reader
from tests.kafka.harness import create_topic, read, settled, unique
from tests.pipeline.pipeline import contents
from tests.pipeline.test_users import ENDLESS, KEY, LANE, WEIGHTED, Visit, by_hand
from tests.worker.harness import now_ms
from workers.agents.contribute import ContributeShard, ContributeStage
from workers.kafka.clients import Connection
from workers.kafka.records import Batch, Records
from workers.kafka.shard import Assignment
from workers.kafka.store import Changelog, Store
from workers.pipeline import users
from workers.pipeline.contributions import decode
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.settings.settings import EventsSettings

pytestmark = pytest.mark.waits

# Events of 1970 are rejected, and so are those too many ticks ago.
BEGIN_MS = now_ms() - 60_000
LANES = [lane._replace(start_ms=BEGIN_MS) for lane in (LANE, ENDLESS, WEIGHTED)]
SIZE = 12


class Killed(Exception): ...


def kill(*_: object) -> None:
    raise Killed


def before_the_transaction(shard: Any) -> None:
    shard.transact = kill


def with_everything_sent(shard: Any) -> None:
    insist = shard.transactions._call_until_done

    def sent(name: str, call: Any) -> None:
        if name == "commit":
            call.__self__.flush(60)  # the producer's method
            kill()
        insist(name, call)

    shard.transactions._call_until_done = sent


def committed_but_not_written_locally(shard: Any) -> None:
    shard.store.write = kill


def after_the_commit(shard: Any) -> None:
    transact = shard.transact

    def whole(*arguments: Any) -> None:
        transact(*arguments)
        kill()

    shard.transact = whole


STEPS: list[Callable[[Any], None]] = [before_the_transaction, with_everything_sent]
STEPS += [committed_but_not_written_locally, after_the_commit]


def visits_of(seed: int) -> list[Visit]:
    """Return visits of four users in four epochs, exceeding every cap."""
    rng = random.Random(seed)
    visits = []
    for i in range(156):
        user = f"u{rng.randrange(4)}"
        key = rng.choice(["k1", "k2"])
        visits.append((user, key, rng.choices("abcde", k=rng.randint(0, 4)), i))
    return visits


class Source:
    """One source partition of events, and its successive shards."""

    def __init__(self, bootstrap: str, directory: Path, visits: list[Visit]) -> None:
        self.connection = Connection(bootstrap)
        self.directory = directory
        self.visits = visits
        self.name = unique("users")
        create_topic(self.connection, f"{self.name}.state", cleanup_policy="compact")
        create_topic(self.connection, f"{self.name}.contributions")
        self.opened = 0

    def shard(self, *, local_copy: bool) -> ContributeShard:
        """Return the next owner; without the local copy it reads everything from the changelog."""
        self.opened += not local_copy
        fields: dict[str, Any] = {
            "key": "shop",
            "items": "q",
            "user": "who",
            "timestamp": "ts",
        }
        events = EventsSettings(topic="t", grace_ms=0, **fields)
        state = f"{self.name}.state"
        sources = Sources((SourceTopic("t", 1, None),))
        stage = ContributeStage(
            events=events,
            sources=sources,
            contributions=f"{self.name}.contributions",
            owners=Owners(1),
            epochs=(),
            rejects="none",
            lanes=LANES,
            reader=event_reader(events, "who"),
            declared=ANY,
            sums={},
            key=KEY,
            commit_interval_s=0.0,
        )
        store = Store(self.directory / f"copy-{self.opened}", Changelog(state, 0))
        assignment = Assignment(self.connection, self.name, 0, store)
        made = ContributeShard(assignment, next(iter(sources)), stage)
        made.open()
        if made.offset is None:
            made.offset = 0  # as the hand-over does: from where the log begins
        return made

    def feed(self, shard: ContributeShard) -> int:
        """Feed the shard its next events; return the position it resumes from."""
        start = shard.offset or 0
        some = self.visits[start : start + SIZE]
        values: list[bytes | None] = [
            json.dumps(
                {"who": user, "shop": key, "q": items, "ts": BEGIN_MS + at}
            ).encode()
            for user, key, items, at in some
        ]
        end = start + len(some)
        shard.feed(Batch(start, end, Records.of(values, offsets=range(start, end))))
        return end

    def contributed(self) -> Any:
        topic = f"{self.name}.contributions"
        settled(self.connection, topic)
        return contents(
            decode(message.value() or b"") for message in read(self.connection, topic)
        )

    def expected(self) -> Any:
        first, *others = (by_hand(self.visits, lane) for lane in LANES)
        return sum(others, first)


@pytest.mark.parametrize("local_copy", [True, False])
def test_caps_hold_through_a_kill_at_every_step_of_every_commit(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_copy: bool
) -> None:
    """If users and counts diverge at one step, a kill there counts a user twice or not at all."""
    monkeypatch.setattr(users, "TAIL_ROWS", 7)
    source = Source(bootstrap, tmp_path, visits_of(3))
    done = kills = 0
    while done < len(source.visits):
        for step in STEPS:
            if done < len(source.visits):
                shard = source.shard(local_copy=local_copy)
                step(shard)
                with pytest.raises(Killed):
                    source.feed(shard)
                shard.store.close()
                kills += 1
                after = source.shard(local_copy=local_copy)
                done = after.offset or 0
                after.store.close()
    assert source.contributed() == source.expected()
    assert kills > 2 * len(STEPS)
    last = source.shard(local_copy=local_copy)
    # Of the lanes with epochs, only the open epoch remains.
    open_epoch = LANE.epoch(source.visits[-1][3] // LANE.tick_ms + 1)
    epochs = {int.from_bytes(name[9:17]) for name, _ in last.store.items(b"U")}
    assert epochs <= {0, open_epoch}
    last.store.close()


def test_a_shard_that_forgets_its_users_is_found(
    bootstrap: str, tmp_path: Path
) -> None:
    """Control: the transaction omits the users' blocks."""
    source = Source(bootstrap, tmp_path, visits_of(3))
    done = 0
    while done < len(source.visits):
        shard: Any = source.shard(local_copy=True)
        shard._intake.user_changes = list
        done = source.feed(shard)
        shard.store.close()
    assert source.contributed() != source.expected()
