"""Lag of a shard: in records, and in seconds since a record has been waiting."""

import pytest

from workers.kafka.offsets import (
    _SAMPLES_MAX,
    OPEN_S,
    Lag,
    OpenTransaction,
    ReadPosition,
)


def test_a_busy_shard_that_keeps_up_is_never_far_behind() -> None:
    """Under load the end is always ahead of the shard; that alone is not lag."""
    lag = Lag()
    for second in range(100):
        end = 1000 * second
        lag.sample(float(second), max(0, end - 1500), ReadPosition(end, end, end))
        assert lag.seconds(float(second)) <= 2.0
    assert lag.reached
    assert lag.records == 1500


def test_a_shard_that_stands_still_falls_behind_from_the_first_record_it_did_not_take() -> (
    None
):
    """Operators need the duration, whatever the records' own times are."""
    lag = Lag()
    lag.sample(0.0, 10, ReadPosition(10, 10, 10))
    assert (lag.records, lag.seconds(50.0)) == (0, 0.0)
    for second in range(60, 100):
        lag.sample(float(second), 10, ReadPosition(10, 10, second))
    assert (lag.records, lag.seconds(100.0)) == (89, 40.0)
    lag.sample(100.0, 100, ReadPosition(100, 100, 100))
    assert (lag.records, lag.seconds(200.0)) == (0, 0.0)


def test_what_was_there_at_the_start_has_been_reached_only_when_it_was_read() -> None:
    """A worker just started on a long backlog is not caught up."""
    lag = Lag()
    lag.sample(0.0, 0, ReadPosition(0, 0, 5000))
    assert not lag.reached
    lag.sample(1.0, 4999, ReadPosition(4999, 4999, 9000))
    assert not lag.reached
    lag.sample(2.0, 5000, ReadPosition(5000, 5000, 9000))
    assert lag.reached


def test_records_that_nobody_may_see_are_no_lag() -> None:
    """A log of transactions ends with a control record, and the shard stays before it."""
    lag = Lag()
    lag.sample(0.0, 7, ReadPosition(7, 8, 8))
    assert (lag.records, lag.reached) == (0, True)
    lag.sample(1.0, 5, ReadPosition(7, 8, 8))
    assert lag.records == 3, "a batch is on its way to the shard"


def test_a_backlog_of_days_takes_little_memory_and_keeps_its_beginning() -> None:
    """One sample a second would grow without end."""
    lag = Lag()
    for second in range(10_000):
        lag.sample(float(second), 0, ReadPosition(0, 0, second + 1))
    assert len(lag._ends) <= _SAMPLES_MAX
    assert lag.seconds(10_000.0) == 10_000.0


def hidden_tail(position: int, end: int, stable: int, fetched_ms: int) -> ReadPosition:
    return ReadPosition(position, position, end, stable, fetched_ms)


def test_records_behind_an_open_transaction_are_lag() -> None:
    """They are in the log and not processed; the worker once said 0."""
    lag = Lag()
    lag.sample(0.0, 100, hidden_tail(100, 351, 100, 0))
    assert (lag.records, lag.reached) == (251, False)
    assert lag.seconds(40.0) == 40.0
    lag.sample(41.0, 350, ReadPosition(350, 352, 352, 352))  # control records end it
    assert (lag.records, lag.reached, lag.seconds(42.0)) == (0, True, 0.0)


@pytest.mark.parametrize("first", [0, 100])
def test_a_transaction_that_stays_open_holds_a_log_up_until_it_ends(first: int) -> None:
    """Even if nothing of the log was ever readable."""
    transaction = OpenTransaction()
    start_s = 5_000.0
    for second in range(30):
        transaction.sample(
            start_s + second, hidden_tail(first, first + 251, first, second)
        )
        assert transaction.holds_up is (second >= OPEN_S)
    assert transaction.why == (
        f"a transaction is open at offset {first} and hides up to 251 records from there on"
    )
    assert transaction.since_s == start_s
    transaction.sample(start_s + 30, hidden_tail(first, first + 252, first + 252, 30))
    assert not transaction.holds_up


def test_producers_that_always_have_a_short_transaction_open_hold_nothing_up() -> None:
    """The last stable offset is always behind the end, but it moves."""
    transaction = OpenTransaction()
    for second in range(100):
        stable = 50 * (second // 9)
        transaction.sample(
            float(second), hidden_tail(stable, stable + 70, stable, second)
        )
        assert not transaction.holds_up


def test_a_backlog_before_an_open_transaction_is_what_is_waited_for() -> None:
    transaction = OpenTransaction()
    for second in range(30):
        transaction.sample(float(second), hidden_tail(10 * second, 500, 290, second))
        assert transaction.holds_up is (second == 29)


def test_without_a_fetch_nobody_knows_whether_a_transaction_is_still_open() -> None:
    """A broker that is away, or a shard without room, is another reason to wait."""
    transaction = OpenTransaction()
    for second in range(60):
        transaction.sample(float(second), hidden_tail(100, 351, 100, 7))
        assert not transaction.holds_up
