"""Lag of a shard: in records, and in seconds since a record has been waiting."""

from workers.kafka.offsets import _SAMPLES_MAX, Lag, ReadPosition


def test_a_busy_shard_that_keeps_up_is_never_far_behind() -> None:
    """Under load the end is always ahead of the shard; that alone is not lag."""
    lag = Lag()
    for second in range(100):
        end = 1000 * second
        lag.sample(float(second), max(0, end - 1500), ReadPosition(end, end, end))
        assert lag.seconds(float(second)) <= 2.0
    assert lag.reached
    assert lag.records == 1500


def test_a_shard_that_stands_still_falls_behind_from_the_first_record_it_did_not_take() -> None:
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
