"""Whether the worker is alive and whether it is ready, with reasons; what restarts and rolling upgrades depend on.

    alive   the event loop goes round, and no shard's thread has been at one piece of work for too long
            (else a restart helps)
    ready   partitions assigned and taken over, their logs read up to now, stage 1 commits as often as it must
            (else wait before the next worker is stopped)

A worker with nothing to do, because there are more workers than partitions, is ready. What a broker that is away does to a worker makes
it unready, never dead. Reasons name topics, partitions and seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from workers.agents.contribute import ContributeShard
from workers.kafka.handover import Handover

#: The loop goes round every 0.2 s.
LOOP_S = 30.0
#: A transaction is given up after two minutes and the longest step of a mechanism takes seconds.
SHARD_S = 600.0
#: Reading is behind when something has been in the log for so long and is not processed.
BEHIND_S = 30.0
#: Beyond the longest time after which stage 1 must have committed.
COMMIT_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often stage 1 commits at the least.

    Attributes:
        commit_interval_s: what was read is committed after so long.
        tick_s: of the narrowest tick: closing one is a commit, also when nothing was read.
        grace_ms: ticks close so much later.
    """

    commit_interval_s: float
    tick_s: float
    grace_ms: int


class Health:
    """Judges a hand-over and its shards; may be asked from any thread."""

    def __init__(self, handover: Handover, rhythm: Rhythm) -> None:
        self._handover, self._rhythm = handover, rhythm

    def not_alive(self, now_s: float) -> list[str]:
        """Why the worker should be restarted; nothing when it should not.

        Args:
            now_s: monotonic clock.
        """
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
        """Why the worker does not do its share yet; nothing when it does.

        Args:
            now_s: monotonic clock.
            now_ms: wall clock.
        """
        handover = self._handover
        if handover.exit_status is not None:
            return ["stopping"]
        if not handover.assigned:
            return ["no partitions are assigned, or they are still being taken over"]
        found = []
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
            if isinstance(shard, ContributeShard):
                age_s = now_s - shard.stats.last_commit_s
                if age_s > self._longest_s(shard, now_ms):
                    found.append(f"{name}: no commit for {age_s:.0f} s")
        return found

    def _longest_s(self, shard: ContributeShard, now_ms: int) -> float:
        """Return the seconds after which a shard of stage 1 must have committed."""
        longest_s = self._rhythm.commit_interval_s + COMMIT_MARGIN_S
        if shard.offset != shard.committed:
            return longest_s
        # Ticks close by the clock; events dated ahead have closed some before their time.
        ahead_ms = 0 if shard.watermark is None else max(0, shard.watermark + self._rhythm.grace_ms - now_ms)
        return longest_s + self._rhythm.tick_s + ahead_ms / 1000


Answer = tuple[int, dict[str, object]]


def answers(health: Health, handover: Handover) -> dict[str, Callable[[], Answer]]:
    """Return what /healthz and /readyz say: status and JSON body."""

    def healthz() -> Answer:
        reasons = health.not_alive(time.monotonic())
        return 503 if reasons else 200, {"alive": not reasons, "reasons": reasons}

    def readyz() -> Answer:
        now_s = time.monotonic()
        reasons = health.not_ready(now_s, time.time_ns() // 1_000_000)
        shards = [
            {
                "stage": shard.stage,
                "partition": shard.partition,
                "behind_seconds": round(lag.seconds(now_s), 1) if (lag := handover.lags.get(tp)) is not None else None,
                "commit_age_seconds": round(now_s - shard.stats.last_commit_s, 1)
                if shard.stats.last_commit_s
                else None,
            }
            for tp, shard in list(handover.shards.items())
        ]
        return 503 if reasons else 200, {"ready": not reasons, "reasons": reasons, "partitions": shards}

    return {"/healthz": healthz, "/readyz": readyz}
