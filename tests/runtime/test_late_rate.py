"""The alarm for late events begins above a tenth of a histogram's events, and ends far below it."""

import logging

import pytest

from workers.runtime.metrics import RECORDS_MIN, WINDOW_S, LateRate, Metrics

BEGUN = "many events come late"
OVER = "few of its events come late now"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_it_begins_above_a_tenth_and_ends_at_a_twentieth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    rate = LateRate()
    rate.note_events("products", 0.0, 1_000, 100)
    assert said(caplog) == []
    rate.note_events("products", 1.0, 10, 10)
    [line] = said(caplog)
    assert line.startswith(f"products: {BEGUN}, after their tick has closed")
    assert "(110 of 1010 within a minute)" in line and "events.grace" in line
    rate.note_events("products", 2.0, 800, 0)
    assert said(caplog) == [line], "six in a hundred: it neither ends nor begins again"
    rate.note_events("products", 2.0 + 2 * WINDOW_S, 1_000, 50)
    assert said(caplog) == [line, f"products: {OVER}"]


def test_a_few_events_are_no_share_and_histograms_are_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    rate = LateRate()
    rate.note_events("few", 0.0, RECORDS_MIN - 1, RECORDS_MIN - 1)
    rate.note_events("large", 0.0, 100_000, 200)
    rate.note_events("small", 0.0, 1_000, 200)
    [line] = said(caplog)
    assert line.startswith("small: ")


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
