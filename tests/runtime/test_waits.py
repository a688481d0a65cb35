"""What a worker waits for while brokers answer: said once, with the cause first, and once when it is over."""

import logging

import pytest

from workers.runtime.availability import HELD_UP_S, PARTITIONS, Waits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def said(caplog: pytest.LogCaptureFixture, waits: Waits) -> list[str]:
    caplog.clear()
    waits.say()
    return [record.getMessage() for record in caplog.records]


def test_a_wait_is_said_once_with_its_cause_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    waits = Waits(clock)
    waits.note("shard", {"w-release-0": "to commit: Timed out"})
    clock.now_s += HELD_UP_S - 1
    waits.note("shard", {"w-release-0": "to commit: Timed out again"})  # since it began
    waits.note(PARTITIONS, {f"t[{i}]": "it has no leader" for i in range(3)})
    assert said(caplog, waits) == [] and waits.seconds == 0 and waits.reasons == []
    clock.now_s += 1
    [line] = said(caplog, waits)
    causes = "; ".join(f"t[{i}]: it has no leader (for 1 s)" for i in range(3))
    assert line == f"held up: {causes}; and 1 more. Waiting for it; nothing is lost"
    assert waits.seconds == HELD_UP_S and waits.has(PARTITIONS)
    assert waits.reasons[-1] == "w-release-0: to commit: Timed out again (for 5 s)"
    waits.note(PARTITIONS, {})
    clock.now_s += 10
    assert said(caplog, waits) == []
    waits.note("shard", {})
    assert said(caplog, waits) == ["no longer held up, after 15 s"]
    assert said(caplog, waits) == [] and waits.seconds == 0


def test_short_waits_are_not_said_and_an_outage_says_it_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    waits = Waits(clock)
    for _ in range(5):
        waits.note("shard", {"w-release-0": "to commit"})
        clock.now_s += HELD_UP_S - 1
        waits.note("shard", {})
        assert said(caplog, waits) == []
    waits.note("shard", {"w-release-0": "to commit"})
    clock.now_s += HELD_UP_S
    assert said(caplog, waits) == []  # the partitions that may explain it are looked at meanwhile
    clock.now_s += HELD_UP_S
    assert len(said(caplog, waits)) == 1
    waits.forget()
    assert said(caplog, waits) == [] and not waits.reasons
