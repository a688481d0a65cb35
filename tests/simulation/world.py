"""One schedule: two workers, their shards, events, and faults, all from one seed."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tests.cluster.broker import Broker, Partition, ProducerState, Record
from tests.cluster.connection import Running, follow
from tests.cluster.loop import BASE_MS, TIME, Actor, Loop
from tests.cluster.network import Network, Rates
from tests.simulation.checks import Checks, Place, Violation
from tests.simulation.sites import EVENTS, KEYS, Site
from workers.agents.contribute import ContributeShard
from workers.agents.source_shard import SourceShard
from workers.kafka.clients import unreachable
from workers.kafka.placement import partitions_of
from workers.kafka.shard import Shard, ShardClosed
from workers.kafka.transaction import TRANSACTION_TIMEOUT_MS
from workers.kafka.transaction_state import State
from workers.pipeline.factory import lanes
from workers.runtime.errors import Fenced, SourcesGrown
from workers.runtime.metrics import RELEASE

_LIVENESS_S = 2_000.0
# The operator aborts a transaction that hangs this long.
_HANGING_S = 40.0
_TURN_S = 5.0
_LOOK_S = 1.0
_WORST = 5.0
#: Share of schedules in which a topic gets more partitions.
_GROWING = 0.3
#: Longer than an epoch and the time that workers have to notice.
_MOVING_S = 200.0


@dataclass
class Slot:
    """A source partition of a stage, and the actor that it is assigned to."""

    stage: str
    where: Partition
    actor: "ShardActor | None" = None


class ShardActor(Actor):
    def __init__(
        self, loop: Loop, name: str, world: "World", worker: str, slot: Slot
    ) -> None:
        super().__init__(loop, name, world.before_wait)
        self.worker = worker
        self.slot = slot
        self.shard: Shard | None = None

    @property
    def state_offset(self) -> int:
        return 0 if self.shard is None else self.shard.store.offset or 0


@dataclass
class Outcome:
    seed: int
    digest: str
    steps: int
    seconds: float
    counts: Counter[str]
    violation: str | None = None
    last: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, sites: Sequence[Site]) -> None:
        self.loop = loop = Loop(seed)
        self.seed = seed
        self.rng = loop.rng
        # Owners grow over several epochs: such a schedule takes four times as long.
        weights = [1 if each.grows_owners else 2 for each in sites]
        self.site = site = self.rng.choices(sites, weights)[0]
        self.lanes = lanes(site.settings)
        self.checks = Checks(site.roles, site.ceiling)
        self.rates = self._draw_rates()
        verifies = self.rng.random() < 0.7
        self.broker = Broker(
            loop, self.checks, verifies=verifies, marker_s=self._marker_s
        )
        self.network = Network(loop, self.broker, self.rates)
        for one in site.topics.plan:
            for partition in range(one.partitions):
                self.broker.create(one.name, partition)
        self.counts = self.network.counts
        self.actors: list[ShardActor] = []
        self.factories = dict.fromkeys("AB", site.factory)
        self.slots = [
            Slot(stage, (topic, number))
            for stage, topics in site.factory.stages.items()
            for topic in topics
            for number in range(site.topics.partitions(topic))
        ]
        self.stop_s = site.pace * self.rng.uniform(30.0, 80.0)
        grows_owners = site.grows_owners and self.rng.random() < 2 * _GROWING
        self._moves = self.rng.choice((1, 2)) if grows_owners else 0
        self.stop_s += _MOVING_S * self._moves
        self._look_s = _LOOK_S
        self._hanging: dict[tuple[Partition, int], float] = {}
        self._wanted: set[tuple[str, Place]] = set()

    def _draw_rates(self) -> Rates:
        def draw(low: float, high: float) -> float:
            return (
                0.0 if self.rng.random() < 0.35 else 10 ** self.rng.uniform(low, high)
            )

        return Rates(
            breaks=draw(-2.3, -0.7),
            slow=draw(-2.0, -0.7),
            kills=draw(-3.3, -2.0),
            stalls=draw(-3.5, -2.0),
            long_stalls=draw(-4.5, -3.3),
            reassigns=draw(-1.7, -0.4),
            moves=draw(-2.0, -0.7),
            refuses=draw(-2.0, -0.7),
            unread=draw(-2.3, -1.0),
            slow_markers=draw(-1.7, -0.4),
            hangs=draw(-2.5, -1.0),
        )

    def _marker_s(self) -> float:
        return self.network.marker_s()

    # ---- events -------------------------------------------------------------------------------

    def _schedule_events(self) -> None:
        rng = self.rng
        origins = self.site.topics.partitions(EVENTS)
        last_s = self.stop_s * rng.uniform(0.5, 1.0)
        first_s = [0.0] * origins
        if self.site.grows and rng.random() < _GROWING:
            self.counts["growths"] += 1
            first_s += [rng.uniform(0.0, last_s)] * rng.randint(1, 2)
            self.loop.at(first_s[-1], lambda: self._add_partitions(len(first_s)))
        self.counts["owners' growths"] += self._moves
        # The second one may be asked for before the first one holds.
        for at_s in (20.0, _MOVING_S)[: self._moves]:
            self.loop.at(rng.uniform(0.0, at_s), self._add_owners)
        number = 0
        for partition, since_s in enumerate(first_s):
            for _ in range(rng.randint(3, 9)):
                at_s = rng.uniform(since_s, last_s)
                label = f"e{number}"
                self.loop.at(at_s, lambda p=partition, name=label: self._send(p, name))  # type: ignore[misc]
                number += 1

    def _send(self, partition: int, label: str) -> None:
        rng = self.rng
        now_ms = self.loop.now_ms
        late_ms = self.site.pace * rng.choice((0, 0, 3_000, 45_000))
        time_ms = now_ms - late_ms
        user = f"u{rng.randrange(6)}"
        kind = rng.random()
        if kind < 0.04:
            time_ms = now_ms + 400_000
        event = {
            "key": rng.choice(KEYS),
            "items": [label],
            "ts": time_ms,
            "user": user,
        }
        value = json.dumps(event).encode()
        if 0.04 <= kind < 0.08:
            value = value[:-1]
        elif (
            kind >= 0.08
            and not self.site.rekey
            and self.site.settings.privacy.unit == "user"
        ):
            partition = self._home(user)
        self.checks.events[label] = value
        log = self.broker.logs[EVENTS, partition]
        log.append(Record(0, user.encode(), value, (), now_ms, committed=True))
        if kind >= 0.08:
            key = str(event["key"]).encode()
            settings = self.site.settings
            self._wanted |= {
                (topic, (key, part))
                for one in settings.histograms
                for _, topic in settings.outputs(one)
                for part in range(1, one.split + 1)
            }

    def _home(self, user: str) -> int:
        text = user.encode()
        places = np.array([[0, len(text)]])
        n = self.site.topics.partitions(EVENTS)
        return int(partitions_of(np.frombuffer(text, dtype=np.uint8), places, n)[0])

    # ---- growth -------------------------------------------------------------------------------

    def _add_partitions(self, number: int) -> None:
        self.loop.note(f"{EVENTS}: {number} partitions")
        for topic in (EVENTS, self.site.roles.first_state):
            for partition in range(self.site.topics.partitions(topic), number):
                self.broker.create(topic, partition)

    def _add_owners(self) -> None:
        roles = self.site.roles
        before = self.broker.partitions(roles.contributions)
        self.loop.note(f"{roles.contributions}: {2 * before} partitions")
        for topic in (roles.release_state, roles.contributions):
            for partition in range(before, 2 * before):
                self.broker.create(topic, partition)

    def _look_for_growth(self) -> None:
        """As `workers.agents.growth`: ask source partition 0 to let partitions join, or know them."""
        [events] = self.site.factory.topics.origins.first
        number, owners = map(
            self.broker.partitions, (EVENTS, self.site.roles.contributions)
        )
        told = 0 if self.checks.owners is None else self.checks.owners.number
        for worker, factory in self.factories.items():
            joins = len(factory.topics.origins) < number
            moves = factory.owners.number < owners
            if not (joins or moves) or self.rng.random() < 0.3:
                continue
            if (joins and self.checks.joined) or factory.owners.number < told:
                self._restart(worker)
                continue
            for slot in self.slots:
                shard = None if slot.actor is None else slot.actor.shard
                if slot.actor is None or slot.actor.worker != worker or slot.where[1]:
                    continue
                if joins and slot.where[0] == EVENTS and isinstance(shard, SourceShard):
                    shard.grow([msgspec.structs.replace(events, partitions=number)])
                if moves and isinstance(shard, ContributeShard):
                    shard.grow_owners(owners)

    def _know_joined(self, worker: str) -> None:
        """Give a worker that starts the partitions that have joined, and the owners."""
        before = self.factories[worker]
        joined = self.checks.joined
        owners = self.checks.owners or before.owners
        if (before.topics.origins.joined, before.owners) == (joined, owners):
            return
        now = msgspec.structs.replace(before.topics.origins, joined=joined)
        self.factories[worker] = self.site.grown(now, owners)
        contributions = self.site.roles.contributions
        places = [(self.slots[0].stage, place.log) for place in now]
        places += [(RELEASE, (contributions, owner)) for owner in range(owners.number)]
        known = {slot.where for slot in self.slots}
        for stage, log in places:
            if log not in known:
                self.slots.append(slot := Slot(stage, log))
                self._start_later(slot, self.rng.uniform(0.0, 3.0), worker)

    # ---- workers ------------------------------------------------------------------------------

    def _start(self, slot: Slot, worker: str) -> None:
        name = f"{worker}#{len(self.actors)} {slot.stage}-{slot.where[1]}"
        slot.actor = actor = ShardActor(self.loop, name, self, worker, slot)
        self.actors.append(actor)
        self.loop.note(f"{name}: starts")
        actor.start(lambda: self._work(actor))

    def _start_later(
        self, slot: Slot, delay_s: float, worker: str | None = None
    ) -> None:
        """Start a new actor unless the slot has another one by then."""
        before = slot.actor

        def start() -> None:
            if slot.actor is before:
                self._start(slot, worker or self.rng.choice("AB"))

        self.loop.after(delay_s, start)

    def _work(self, actor: ShardActor) -> None:
        slot = actor.slot
        topic, partition = slot.where
        actor.shard = shard = self.factories[actor.worker].stages[slot.stage][topic](
            partition
        )
        if shard is None:  # it has joined, and this worker has not seen it yet
            self._restart(actor.worker)
            return
        try:
            try:
                self._serve(actor, shard)
            finally:
                shard.closed = True
        except ShardClosed:
            pass
        except SourcesGrown as error:
            self.counts["joined"] += 1
            self.loop.note(f"{actor.name}: {error}")
            self._restart(actor.worker)
        except Fenced as error:
            self.counts["fenced"] += 1
            self.loop.note(f"{actor.name}: {error}")
            if slot.actor is actor:
                self._start_later(slot, self.rng.uniform(1.0, 30.0), actor.worker)
        except Exception as error:
            if isinstance(error, Violation) or not unreachable(error):
                raise Violation(
                    f"{actor.name}: {type(error).__name__}: {error}"
                ) from error
            self.counts["away"] += 1
            self.loop.note(f"{actor.name}: {type(error).__name__}: {error}")
            self._restart(actor.worker)
        shard.close()

    def _serve(self, actor: ShardActor, shard: Shard) -> None:
        rng = self.rng
        log = self.broker.logs[actor.slot.where]

        def pause_s() -> float:
            return self.site.pace * rng.choice((0.3, 2.0, 5.0)) * rng.uniform(0.5, 1.5)

        def next_end(start: int, stable: int) -> int:
            return stable if rng.random() < 0.6 else rng.randint(start + 1, stable)

        for handed in follow(shard, log, pause_s, next_end):
            if handed > log.stable:
                raise Violation(
                    f"{actor.name}: continues at {handed}, the log ends at {log.stable}"
                )
            self.loop.note(f"{actor.name}: open at {handed}")

    def before_wait(self, actor: Actor) -> None:
        """Perhaps end the process that waits, or keep its thread from going on."""
        assert isinstance(actor, ShardActor)
        draw = self.rng.random()
        rates = self.rates
        shard = actor.shard
        state = None if shard is None else shard.transactions._state
        renewing = state is State.RENEWING
        # What was written so far may become visible, or be written again by another owner.
        kills = rates.kills * (
            _WORST if state in (State.OPEN, State.COMMITTING) else 1.0
        )
        if (
            renewing
            and actor.slot.actor is actor
            and self.rng.random() < rates.reassigns
        ):
            # The worst time for a newer owner: this one is about to fence it.
            actor.stalled_until_s = self.loop.now_s + self.rng.uniform(5.0, 30.0)
            self._reassign(actor.slot, zombie_s=60.0)
            return
        if draw < kills:
            self.counts["kills"] += 1
            self._kill(actor.worker)
        elif draw < kills + rates.stalls:
            self.counts["stalls"] += 1
            seconds = self.rng.choice((0.6, 3.0, 25.0, 70.0)) * self.rng.uniform(
                0.8, 1.2
            )
            actor.stalled_until_s = self.loop.now_s + seconds
        elif draw < kills + rates.stalls + rates.long_stalls:
            self.counts["long stalls"] += 1
            actor.stalled_until_s = self.loop.now_s + self.rng.uniform(290.0, 400.0)

    def _kill(self, worker: str) -> None:
        self.loop.note(f"{worker}: killed")
        for actor in self.actors:
            if actor.worker == worker and not actor.dead and not actor.ended:
                actor.kill()
                for client in actor.clients:
                    client.close()
                if actor.slot.actor is actor:
                    self._start_later(actor.slot, self.rng.choice((0.3, 3.0, 11.0)))

    def _restart(self, worker: str) -> None:
        """Give up everything, as after an outage, and begin again."""
        self._know_joined(worker)
        for slot in self.slots:
            if slot.actor is not None and slot.actor.worker == worker:
                self._revoke(slot.actor)
                self._start_later(slot, self.rng.uniform(1.0, 3.0), worker)

    def _revoke(self, actor: ShardActor) -> None:
        if actor.shard is not None:
            actor.shard.closed = True

    def _reassign(self, slot: Slot, zombie_s: float) -> None:
        old = slot.actor
        if old is None:
            return
        self.counts["hand-overs"] += 1
        self.loop.note(f"{old.name}: handed over, goes on for {zombie_s:.2f} s")
        self.loop.after(zombie_s, lambda: self._revoke(old))
        self._start_later(
            slot, self.rng.uniform(0.0, 0.5), "B" if old.worker == "A" else "A"
        )

    # ---- the run ------------------------------------------------------------------------------

    def _turn(self) -> None:
        rng = self.rng
        rates = self.rates
        broker = self.broker
        if rng.random() < rates.reassigns:
            zombie_s = rng.choice((0.0, 0.5, 5.0, 40.0)) * rng.random()
            self._reassign(rng.choice(self.slots), zombie_s)
        if rng.random() < rates.moves:
            self.counts["coordinator moves"] += 1
            broker.moving_until_s = (
                self.loop.now_s + rng.choice((0.3, 2.0, 20.0)) * rng.random()
            )
            broker.silent = rng.random() < 0.5
        if rng.random() < rates.hangs:
            self._hang(rng.choice(self.site.roles.states))
        broker.time_out(TRANSACTION_TIMEOUT_MS / 1000)
        self._abort_hanging()
        self._look_for_growth()
        self.loop.after(_TURN_S * self.site.pace, self._turn)

    def _hang(self, topic: str) -> None:
        """Open a transaction without owner, as a late record of a forgotten producer does."""
        log = self.broker.logs[topic, self.rng.randrange(self.broker.partitions(topic))]
        pid = 1_000 + log.end
        self.loop.note(f"{log}: a transaction hangs at {log.end}")
        log.producers[pid] = ProducerState(0)
        log.open[pid] = log.end
        log.append(Record(0, b"hanging", b"", (), self.loop.now_ms, pid, 0))

    def _abort_hanging(self) -> None:
        owned = {
            (where, one.pid)
            for one in self.broker.transactions.values()
            for where in (one.partitions if one.state == "ongoing" else one.unwritten)
        }
        found = {
            (w, pid) for w, log in self.broker.logs.items() for pid in log.open
        } - owned
        now_s = self.loop.now_s
        self._hanging = {one: self._hanging.get(one, now_s) for one in found}
        for (where, pid), since_s in sorted(self._hanging.items()):
            if now_s - since_s >= _HANGING_S:
                self.counts["hanging transactions"] += 1
                log = self.broker.logs[where]
                self.broker.mark(log, pid, log.producers[pid].epoch, committed=False)

    def _stop_faults(self) -> None:
        self.loop.note("faults stop")
        self.rates.stop()
        self.broker.moving_until_s = 0.0
        for actor in self.actors:
            if actor.slot.actor is not actor:
                self._revoke(actor)

    def _done(self) -> bool:
        over_s = self.loop.now_s - self.stop_s
        if over_s < self._look_s:
            return False
        self._look_s = over_s + _LOOK_S * self.site.pace
        left = self._left()
        if over_s > _LIVENESS_S * self.site.pace:
            raise Violation(f"not at its end {over_s:,.0f} s after the faults: {left}")
        return not left

    def _left(self) -> list[str]:
        until_ms = BASE_MS + int(self.stop_s * 1000)
        ends = self.checks.ends
        behind = [f"{place}" for place in self._wanted if ends.get(place, 0) < until_ms]
        ending = [name for name, one in self.broker.transactions.items() if one.ending]
        return self.checks.missing(self.lanes) + sorted(behind) + ending

    def run(self) -> Outcome:
        TIME.loop = self.loop
        Running.network = self.network
        self.loop.note(
            f"seed {self.seed}: {self.rates}, verification {self.broker.verifies}"
        )
        self._schedule_events()
        for slot in self.slots:
            self._start_later(slot, self.rng.uniform(0.0, 3.0))
        self.loop.after(_TURN_S * self.site.pace, self._turn)
        self.loop.at(self.stop_s, self._stop_faults)
        violation = None
        try:
            self.loop.run(self._done)
            self._check_end()
        except Violation as error:
            violation = str(error)
            self.loop.note(violation)
        finally:
            for actor in self.actors:
                actor.unwind()
        loop = self.loop
        self.counts["timed out"] += self.broker.timed_out
        self.counts["refused by verification"] += self.broker.refused_late
        self.counts["repeated snapshots"] += self.checks.repeated
        self.counts["commits"] += len(self.checks.attempts)
        last = [] if violation is None else list(loop.last)
        return Outcome(
            self.seed, loop.digest, loop.steps, loop.now_s, self.counts, violation, last
        )

    def _check_end(self) -> None:
        self.checks.check_end(self.lanes)
        contributions = self.site.roles.contributions
        for owner in range(self.broker.partitions(contributions)):
            merge = self.site.factory.merge(owner)
            self.checks.check_snapshots(
                owner, self.broker.logs[contributions, owner], merge
            )
