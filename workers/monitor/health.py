"""Whether the worker is alive and whether it is ready, for restarts and rolling upgrades.

    alive   the event loop turns, and no shard's thread has spent too long on one piece of work
            (else a restart helps)
    ready   partitions assigned and taken over, their logs read up to now, stage 1 commits in time
            (else wait before the next worker is stopped), and what is read are mostly events

A worker with nothing to do, because there are more workers than partitions, is ready. A broker that
is away makes a worker unready, never dead. Reasons name topics, partitions and seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.agents.contribute import ContributeShard
from workers.agents.rekey import RekeyShard
from workers.kafka.handover import KAFKA_AWAY, Handover

#: The loop turns every 0.2 s.
LOOP_S = 30.0
#: Waiting for Kafka is not being stuck, and the longest step of a mechanism takes seconds.
SHARD_S = 600.0
#: Longer than this a record may not wait in the log before reading counts as behind.
BEHIND_S = 30.0
#: Allowed beyond the longest time between two commits of stage 1.
COMMIT_MARGIN_S = 60.0


class Health:
    """Judges a hand-over and its shards; may be asked from any thread."""

    def __init__(self, handover: Handover, *, commit_interval_s: float, tick_s: float, grace_ms: int) -> None:
        """Take what the time between two commits depends on; the tick is the narrowest."""
        self._handover, self._grace_ms = handover, grace_ms
        # Closing a tick is a commit, even when nothing was read.
        self._idle_s, self._tick_s = commit_interval_s + COMMIT_MARGIN_S, tick_s

    def not_alive(self, now_s: float) -> list[str]:
        """Return why the worker should be restarted, if it should (monotonic clock)."""
        found = []
        still_s = now_s - self._handover.beat_s
        if still_s > LOOP_S:
            found.append(f"the event loop has stood still for {still_s:.0f} s")
        for shard in list(self._handover.shards.values()):
            since_s = shard.busy_since_s
            if since_s is not None and now_s - since_s > SHARD_S:
                found.append(f"{shard.transactional_id} has been at one piece of work for {now_s - since_s:.0f} s")
        return found

    def not_ready(self, now_s: float, now_ms: int) -> list[str]:
        """Return why the worker is not ready, if it is not.

        Args:
            now_s: monotonic clock.
            now_ms: wall clock.
        """
        handover = self._handover
        if handover.exit_status not in (None, KAFKA_AWAY):
            return ["stopping"]
        found: list[str] = []
        away = handover.metrics.away
        if away.is_so:
            found.append(f"Kafka has been away for {away.seconds:.0f} s: {away.reason}")
            return found
        if not handover.assigned:
            return ["no partitions are assigned, or they are still being taken over"]
        for topic in topics_read(handover):
            reason = handover.metrics.rejecting.reason(topic, now_s)
            if reason is not None:
                found.append(
                    f"{topic}: nearly all records are rejected, most of them: {reason}: `quietcount check -c FILE` says why"
                )
        for tp, shard in list(handover.shards.items()):
            name = f"{tp[0]}[{tp[1]}]"
            if shard.closed:
                found.append(f"{name}: taken over by a newer owner, and not reassigned yet")
                continue
            lag = handover.lags.get(tp)
            if lag is None or not lag.reached:
                found.append(f"{name}: not read yet up to where it ended when it was taken over")
            elif (behind_s := lag.seconds(now_s)) > BEHIND_S:
                found.append(f"{name}: {behind_s:.0f} s behind")
            if isinstance(shard, ContributeShard | RekeyShard):
                age_s = now_s - shard.stats.last_commit_s
                if age_s > self._longest_s(shard, now_ms):
                    found.append(f"{name}: no commit for {age_s:.0f} s")
        return found

    def _longest_s(self, shard: ContributeShard | RekeyShard, now_ms: int) -> float:
        """Return the seconds after which a shard that reads events must have committed."""
        if shard.offset != shard.committed:
            return self._idle_s
        # Ticks close by the clock; events dated ahead closed some of them early.
        ahead_ms = 0 if shard.watermark is None else max(0, shard.watermark + self._grace_ms - now_ms)
        return self._idle_s + self._tick_s + ahead_ms / 1000


def topics_read(handover: Handover) -> list[str]:
    """Return the events topics of which partitions are read here."""
    return list(dict.fromkeys(tp[0] for tp, shard in list(handover.shards.items()) if isinstance(shard, ContributeShard | RekeyShard)))


Answer = tuple[int, dict[str, object]]


def answers(health: Health, handover: Handover) -> dict[str, Callable[[], Answer]]:
    """Return the answers of /healthz and /readyz: status and JSON body."""

    def healthz() -> Answer:
        reasons = health.not_alive(time.monotonic())
        return 503 if reasons else 200, {"alive": not reasons, "reasons": reasons}

    def readyz() -> Answer:
        now_s = time.monotonic()
        reasons = health.not_ready(now_s, time.time_ns() // 1_000_000)
        shards = []
        for tp, shard in list(handover.shards.items()):
            lag, committed_s = handover.lags.get(tp), shard.stats.last_commit_s
            shards.append(
                {
                    "stage": shard.stage,
                    "topic": tp[0],
                    "partition": tp[1],
                    "behind_seconds": None if lag is None else round(lag.seconds(now_s), 1),
                    "commit_age_seconds": round(now_s - committed_s, 1) if committed_s else None,
                }
            )
        return 503 if reasons else 200, {"ready": not reasons, "reasons": reasons, "partitions": shards}

    return {"/healthz": healthz, "/readyz": readyz}
