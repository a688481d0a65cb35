"""Alarms for rejects and late events start and end: not too early, without flapping, not forever."""

import logging

import pytest

from workers.runtime.metrics import (
    LATE,
    QUIET_S,
    RECORDS_MIN,
    WINDOW_S,
    LateRate,
    Metrics,
    RejectRate,
)

BEGUN = "nearly all records are rejected ("
OVER = "its records are accepted again"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def test_it_begins_with_the_hundredth_reject(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that rejects everything must not wait a minute to say so."""
    rate = RejectRate()
    for i in range(RECORDS_MIN - 1):
        rate.note("t", 0.01 * i, 1, {"not JSON": 1})
    assert rate.reason("t", 1.0) is None
    rate.note("t", 1.0, 1, {"no value": 1})
    assert rate.reason("t", 1.0) == "not JSON"
    for i in range(1_000):
        rate.note("t", 2.0 + i, 10, {"no value": 10})
    assert rate.reason("t", 1_001.0) == "no value", "the commonest now"
    [line] = [record for record in caplog.records if BEGUN in record.getMessage()]
    assert line.levelno == logging.ERROR
    assert line.getMessage().startswith("t: ") and "not JSON" in line.getMessage()
    assert "`quietcount check -c FILE`" in line.getMessage()


def test_nine_in_ten_are_not_nearly_all(caplog: pytest.LogCaptureFixture) -> None:
    """Producers have their own topics; a good one must not hide a bad one, nor share its blame."""
    rate = RejectRate()
    rate.note("t", 0.0, 1_000, {"not JSON": 900})
    assert rate.reason("t", 0.0) is None
    rate.note("good", 0.0, 10_000, {})
    rate.note("bad", 0.0, 1_000, {"not JSON": 901})
    assert rate.reason("good", 0.0) is None and rate.reason("bad", 0.0) == "not JSON"
    assert rate.reason("unknown", 0.0) is None


def test_what_was_read_a_minute_ago_does_not_count() -> None:
    """A bad minute, a good one, then all bad: it begins again only for the last."""
    rate = RejectRate()
    rate.note("t", 0.0, 10_000, {})
    rate.note("t", WINDOW_S / 2, 200, {"not JSON": 200})
    assert rate.reason("t", WINDOW_S / 2) is None
    rate.note("t", WINDOW_S + 5, 1, {"not JSON": 1})
    assert rate.reason("t", WINDOW_S + 5) == "not JSON"


def test_a_share_about_the_limit_does_not_come_and_go(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rate = RejectRate()
    for i in range(600):
        rate.note("t", float(i), 100, {"not JSON": 95 if i // 70 % 2 == 0 else 85})
    assert [BEGUN in record.getMessage() for record in caplog.records] == [True]


def test_it_is_over_when_half_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """After a settings fix a quiet topic brings a few good records a minute."""
    rate = RejectRate()
    rate.note("t", 0.0, 500, {"not JSON": 500})
    rate.note("t", 70.0, 3, {"not JSON": 2})
    assert rate.reason("t", 70.0) == "not JSON"
    rate.note("t", 72.0, 1, {})
    assert rate.reason("t", 72.0) is None
    assert [OVER in record.getMessage() for record in caplog.records] == [False, True]
    rate.note("t", 73.0, 4, {"not JSON": 4})
    assert rate.reason("t", 73.0) is None, "too few to say"


def test_a_silent_topic_is_not_rejected_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its partitions may have gone to another worker."""
    rate = RejectRate()
    rate.note("t", 0.0, 500, {"not JSON": 500})
    assert rate.reason("t", QUIET_S) == "not JSON"
    assert rate.reason("t", QUIET_S + 1) is None
    assert [OVER in record.getMessage() for record in caplog.records] == [False, True]
    rate.note("t", QUIET_S + 2, 0, {})
    assert rate.reason("t", QUIET_S + 2) is None


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_late_events_are_many_above_a_tenth_and_few_at_a_twentieth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rate = LateRate()
    rate.note("products", 0.0, 1_000, {LATE: 100})
    assert said(caplog) == []
    rate.note("products", 1.0, 10, {LATE: 10})
    [line] = said(caplog)
    assert line.startswith(
        "products: many events come late, after their tick has closed"
    )
    assert "(110 of 1010 within a minute)" in line and "events.grace" in line
    rate.note("products", 2.0, 800, {LATE: 0})
    assert said(caplog) == [line], "six in a hundred: it neither ends nor begins again"
    rate.note("products", 2.0 + 2 * WINDOW_S, 1_000, {LATE: 50})
    assert said(caplog) == [line, "products: few of its events come late now"]


def test_events_of_a_commit_are_in_the_metrics_of_their_histogram() -> None:
    metrics = Metrics()
    metrics.expect_histogram("products")
    metrics.expect_histogram("idle")
    metrics.count_events("products", 10, 3)
    for name, count in (("products", 10), ("idle", 0)):
        labels = {"histogram": name}
        value = metrics.registry.get_sample_value
        assert value("quietcount_histogram_events_total", labels) == count
        assert value("quietcount_late_events_total", labels) == (3 if count else 0)
