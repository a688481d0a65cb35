"""What a worker waits for while brokers answer: said once, with the cause first, and once when it is over."""

import logging

import pytest

from workers.runtime.availability import HELD_UP_S, PARTITIONS, TRANSACTIONS, Waits


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def logged(caplog: pytest.LogCaptureFixture, waits: Waits) -> list[str]:
    caplog.clear()
    waits.say()
    return [record.getMessage() for record in caplog.records]


def test_a_wait_is_said_once_with_its_cause_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    waits = Waits(clock)
    waits.note("shard", {"w-release-0": "to commit: Timed out"})
    clock.now_s += HELD_UP_S - 1
    waits.note("shard", {"w-release-0": "to commit: Timed out again"})  # since it began
    waits.note(PARTITIONS, {f"t[{i}]": "it has no leader" for i in range(3)})
    assert logged(caplog, waits) == [] and waits.seconds == 0 and waits.reasons == []
    clock.now_s += 1
    [line] = logged(caplog, waits)
    causes = "; ".join(f"t[{i}]: it has no leader (for 1 s)" for i in range(3))
    assert line == f"held up: {causes}; and 1 more. Waiting for it; nothing is lost"
    assert waits.seconds == HELD_UP_S and waits.has(PARTITIONS)
    assert waits.reasons[-1] == "w-release-0: to commit: Timed out again (for 5 s)"
    waits.note(PARTITIONS, {})
    clock.now_s += 10
    assert logged(caplog, waits) == []
    waits.note("shard", {})
    assert logged(caplog, waits) == ["no longer held up, after 15 s"]
    assert logged(caplog, waits) == [] and waits.seconds == 0


def test_short_waits_are_not_said_and_an_outage_says_it_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    waits = Waits(clock)
    for _ in range(5):
        waits.note("shard", {"w-release-0": "to commit"})
        clock.now_s += HELD_UP_S - 1
        waits.note("shard", {})
        assert logged(caplog, waits) == []
    waits.note("shard", {"w-release-0": "to commit"})
    clock.now_s += HELD_UP_S
    # the partitions that may explain it are looked at meanwhile
    assert logged(caplog, waits) == []
    clock.now_s += HELD_UP_S
    assert len(logged(caplog, waits)) == 1
    waits.forget()
    assert logged(caplog, waits) == [] and not waits.reasons


def test_every_log_behind_an_open_transaction_is_said_whatever_else_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One may stay open for days: what begins meanwhile must not go unsaid."""
    clock = Clock()
    waits = Waits(clock)
    waits.note(
        TRANSACTIONS, {"t[0]": "a transaction is open"}, {"t[0]": clock.now_s - 10}
    )
    [line] = logged(caplog, waits)
    assert line.startswith(
        "held up: t[0]: a transaction is open (for 10 s). Nothing is lost"
    )
    assert logged(caplog, waits) == [] and waits.seconds == 10
    since_s = {"t[0]": clock.now_s - 10} | {
        f"u[{i}]": clock.now_s - 10 for i in range(5)
    }
    waits.note(TRANSACTIONS, dict.fromkeys(since_s, "a transaction is open"), since_s)
    [line] = logged(caplog, waits)
    assert (
        "t[0]" not in line
        and line.count("(for 10 s)") == 3
        and "; and 2 more. " in line
    )
    waits.note(PARTITIONS, {"v[0]": "it has no leader"})
    clock.now_s += HELD_UP_S
    [line] = logged(caplog, waits)
    assert line.startswith("held up: v[0]: it has no leader (for 5 s). Waiting")
    waits.note(PARTITIONS, {})
    assert logged(caplog, waits) == ["no longer held up, after 5 s"]
    waits.note(
        TRANSACTIONS, {"u[1]": "a transaction is open"}, {"u[1]": since_s["u[1]"]}
    )
    [line] = logged(caplog, waits)
    named = "t[0], u[0], u[2], and 2 more, after 15 s"
    assert line == f"no longer held up by an open transaction: {named}"
    waits.drop_transactions()  # the partition is another worker's now
    assert logged(caplog, waits) == [] and waits.seconds == 0
