"""Alerts: the stated rate of false alarms holds, a rise is told within its stated delay, and nothing is told never or for nothing."""

from __future__ import annotations

import json
import math
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.dashboard.feeding import embedded, reads, seen, sliding
from tests.worker.harness import until
from workers.client.config import load_reader_settings
from workers.dashboard import telling
from workers.dashboard.alerts import DAY_MS, Alarms, Watched, margin_of
from workers.dashboard.server import Background, Dashboard
from workers.dashboard.telling import state_path
from workers.kafka.reading import read_partition
from workers.mechanisms.config.sums import parse_sum
from workers.pipeline.snapshots import Means
from workers.runtime.errors import SettingsError
from workers.settings.alerts import AlertSettings, alerts_of
from workers.settings.settings import DashboardSettings

SD = 20.0
ABOVE = 1_000
SERIES = 10_000
TICKS_A_DAY = 50
TICK_MS = DAY_MS // TICKS_A_DAY
LABELS = [f"item {number:05}" for number in range(SERIES)]


def alert(**changes: Any) -> AlertSettings:
    fields: dict[str, Any] = {
        "name": "much",
        "histogram": "products",
        "window": "1h",
        "above": ABOVE,
        "webhook": "http://127.0.0.1:1/",
    }
    return AlertSettings(**(fields | changes))


def board(tick: int, counts: dict[str, int], **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"tick_ms": TICK_MS, "sd": SD} | changes
    return sliding("1h", tick * TICK_MS, counts.items(), **own)


def false_alarms(days: int, noise_sd: float) -> int:
    """Alarms over 10,000 series of which each counts exactly the limit, the most that is quiet."""
    rng = np.random.default_rng(5)
    alarms = Alarms([alert(series=SERIES, false_alarms=1.0)])
    found = 0
    for tick in range(1, days * TICKS_A_DAY + 1):
        noise = np.floor(rng.normal(0, noise_sd, SERIES) + 0.5)
        counts = (ABOVE + noise.astype(int)).tolist()
        shown = seen(board(tick, dict(zip(LABELS, counts, strict=True))))
        found += len(alarms.take(shown))
    return found


@pytest.mark.slow
def test_quiet_series_raise_no_more_false_alarms_than_stated() -> None:
    """One a day: 4 in four days are at most 13 but for a chance of 1e-4 (Poisson). With twice the noise z = 4.6 is 2.3: 1 % of 500,000."""
    assert 0 < false_alarms(4, SD) <= 13
    assert false_alarms(1, 2 * SD) > 1_000


def test_a_rise_is_told_within_its_stated_delay_and_once() -> None:
    """At the latest at the tick at which the true count is two sd beyond limit and margin, 39 times of 40: of 1,000 items more than 40
    are later with a chance of 4e-4. (Ticks before may tell it too, so fewer are.)
    """
    rng = np.random.default_rng(9)
    rule = alert(series=SERIES)
    alarms = Alarms([rule])
    labels = LABELS[:1_000]
    needed = ABOVE + margin_of(rule, TICK_MS, 1_000, SD) + 2 * SD
    told: dict[str, int] = {}
    true = 900
    tick = 0
    while true < needed:
        tick += 1
        true += 15
        counts = np.floor(rng.normal(true, SD, 1_000) + 0.5).astype(int).tolist()
        shown = seen(board(tick, dict(zip(labels, counts, strict=True))))
        for _, message in alarms.take(shown):
            assert message["item"] not in told, "an item that stays above is told once"
            told[message["item"]] = message["tick"]
    assert len(told) >= 960
    assert margin_of(rule, TICK_MS, 1_000, SD) == pytest.approx(
        5.49 * SD + 0.5, rel=0.01
    )
    # It falls, and rises again.
    assert alarms.take(seen(board(tick + 1, dict.fromkeys(labels, ABOVE)))) == []
    again = alarms.take(seen(board(tick + 2, dict.fromkeys(labels, 2_000))))
    assert len(again) == 1_000
    assert alarms.take(seen(board(tick + 2, dict.fromkeys(labels, 2_000)))) == []


PRICE = Means(parse_sum({"field": "price", "from": 0, "to": 60, "step": 0.01}))


def sum_board(times: float, rng: np.random.Generator) -> dict[str, Any]:
    """50 sales of 1,000 EUR together, with `times` the noise that the snapshot states."""
    sds = np.array([SD, SD * PRICE.steps])
    centred = 2 * (ABOVE - 30 * 50) * 100
    noise = np.floor(times * rng.normal(0, sds) + 0.5).astype(int)
    counts = 50 + noise[:1]
    sums = PRICE.rows(counts, centred + noise[1:], *sds)
    items = {"tea": int(counts[0])}
    return board(1, items, sums=sums, sum=PRICE.head(*sds))


def total_board(times: float, rng: np.random.Generator) -> dict[str, Any]:
    noisy = ABOVE + math.floor(times * rng.normal(0, SD) + 0.5)
    return board(1, {}, all_items={"count": noisy, "sd": SD})


@pytest.mark.parametrize(
    ("of", "made"), [("sum", sum_board), ("all_items", total_board)]
)
def test_sums_and_totals_at_the_limit_alarm_as_often_as_stated(
    of: str, made: Callable[[float, np.random.Generator], dict[str, Any]]
) -> None:
    """One of 50 ticks a day: of 1,000 at most 41 but for 4.7 sd. Twice the noise makes about 150 of them, half of it none."""
    rng = np.random.default_rng(7)

    def alarms(times: float) -> int:
        rule = alert(of=of, series=1, false_alarms=1.0)
        boards = (seen(made(times, rng)) for _ in range(1_000))
        return sum(len(Alarms([rule]).take(shown)) for shown in boards)

    assert 5 <= alarms(1) <= 41
    assert alarms(2) > 90
    assert alarms(0.5) < 3


def test_a_message_says_what_was_compared() -> None:
    rng = np.random.default_rng(8)
    high = sum_board(1, rng)
    high["sums"][0][0] = 9e6
    [(_, told)] = Alarms([alert(of="sum")]).take(seen(high))
    assert (told["item"], told["sum"], told["sd"]) == ("tea", 9e6, high["sum"]["sd"])
    totals = board(1, {"tea": 5}, all_items={"count": 9_000, "sd": 30.0})
    [(_, told)] = Alarms([alert(of="all_items")]).take(seen(totals))
    assert (told["item"], told["all_items"], told["sd"]) == (None, 9_000, 30.0)
    assert Alarms([alert(of="all_items")]).take(seen(board(1, {"tea": 9_000}))) == []
    assert Alarms([alert(of="sum")]).take(seen(board(1, {"tea": 9_000}))) == []


def test_what_is_not_asked_for_or_has_other_noise_raises_nothing() -> None:
    many = {"tea": 9_000, "cup": 9_000}
    for changes, found in (
        ({}, ["tea", "cup"]),
        ({"items": ("cup",)}, ["cup"]),
        ({"keys": ("s2",)}, []),
        ({"above": 9_000}, []),
    ):
        told = Alarms([alert(**changes)]).take(seen(board(1, many)))
        assert [message["item"] for _, message in told] == found
    for fields in ({"mechanism": "two_level"}, {"sd": None}):
        assert Alarms([alert()]).take(seen(board(1, many, **fields))) == []


def test_a_crash_repeats_an_alarm_under_the_same_id() -> None:
    quiet = seen(board(1, {"tea": 10}))
    high = seen(board(2, {"tea": 5_000}))
    first = Alarms([alert()])
    first.take(quiet)
    stored = json.loads(msgspec.json.encode(first.stored()))
    [(_, told)] = first.take(high)
    second = Alarms([alert()])
    second.restore(msgspec.convert(stored, dict[str, dict[str, Watched]]))
    [(_, again)] = second.take(high)
    assert told == again and len(told["alert_id"]) == 32
    assert told["above"] == ABOVE and told["window"]["ms"] == 3_600_000
    # After it was stored, it is not told again.
    third = Alarms([alert()])
    third.restore(second.stored())
    assert third.take(high) == [] == third.take(quiet)


@contextmanager
def webhook(failures: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that refuses its first requests."""
    bodies: list[dict[str, Any]] = []
    left = [failures]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["Idempotency-Key"] == body["alert_id"]
            left[0] -= 1
            if left[0] < 0:
                bodies.append(body)
            self.send_response(500 if left[0] >= 0 else 204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook?token=secret", bodies
        finally:
            server.shutdown()
            thread.join()


def test_an_alert_reaches_webhook_and_topic_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be delivered waits in a file; a webhook that is away holds up no topic; labels are only texts."""
    monkeypatch.setattr(telling, "RETRY_S", (0.05,))
    hostile = '"}\r\nHost: x\r\n\r\n<b>\u2028'
    with embedded("products.1h", "alerts") as topics, webhook(failures=1) as (url, got):
        away = alert(
            webhook="http://127.0.0.1:1/hook?token=secret", topic="orders.alerts"
        )
        settings = replace(
            topics.settings("products.1h"),
            alerts=(away,),
            history=DashboardSettings(store=tmp_path / "board.duckdb"),
        )
        topics.send(board(1, {"tea": 10}), board(2, {hostile: 5_000, "tea": 12}))

        def on_topic() -> list[dict[str, Any]]:
            with topics.connection.admin() as admin:
                about = admin.list_topics("orders.alerts", timeout=60)
            return [
                json.loads(record.value() or b"")
                for part in about.topics["orders.alerts"].partitions
                for record in read_partition(topics.connection, "orders.alerts", part)
            ]

        with Background(Dashboard(settings, port=0)) as running:
            reads(running)
            until(lambda: len(on_topic()) == 1, "the alert on the topic")
        [told] = on_topic()
        assert (told["item"], told["count"]) == (hostile, 5_000)
        assert "secret" not in caplog.text and "not delivered" in caplog.text
        path = state_path(settings)
        assert path.stat().st_mode & 0o077 == 0
        # The webhook is there now: what waits is delivered, and nothing is looked at twice.
        path.write_text(
            path.read_text().replace("http://127.0.0.1:1/hook?token=secret", url)
        )
        settings = replace(
            settings, alerts=(alert(webhook=url, topic="orders.alerts"),)
        )
        with Background(Dashboard(settings, port=0)) as running:
            reads(running)
            until(lambda: len(got) == 1, "the alert at the webhook")
            topics.send(board(3, {"tea": 7_000}))
            until(lambda: len(got) == 2 == len(on_topic()), "the next one at both")
        assert got[0] == told
        assert [one["item"] for one in got] == [hostile, "tea"]


BASE = """[worker]
name = "orders"
[kafka]
bootstrap = "localhost:9092"
[dashboard]
store = "board.duckdb"
[[histogram]]
name = "products"
horizon = "never"
windows = ["1h"]
[[histogram]]
name = "totals"
"""
ALERT = """[[alert]]
name = "much"
histogram = "products"
window = "1h"
above = 1000
webhook = "https://example.org/hook"
"""


def test_wrong_windows_are_left_to_the_check_of_their_histogram() -> None:
    """Workers look at alerts first: a number there once ended them with a traceback."""
    document = tomllib.loads((BASE + ALERT).replace('["1h"]', "5"))
    [found] = alerts_of(document, Path(), stored=True)
    assert found.window == "1h"


def test_alerts_of_a_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(BASE + ALERT)
    [found] = load_reader_settings(path).alerts
    assert found == alert(webhook="https://example.org/hook")
    assert found.series_name == "products.1h"
    for changed, says in (
        (('window = "1h"\n', ""), 'window is missing: one of "1h"'),
        (('window = "1h"', 'window = "2h"'), 'window = "2h": one of "1h"'),
        (
            ('histogram = "products"', 'histogram = "totals"'),
            'only of a histogram with horizon = "never"',
        ),
        (
            ('histogram = "products"', 'histogram = "x"'),
            "no [[histogram]] has this name",
        ),
        (("above = 1000", "above = -1"), "above = -1: a whole number from 0"),
        (("above = 1000\n", ""), "above is missing"),
        (("above", "abov"), "abov: unknown; one of"),
        (("above = 1000", 'above = 1000\nof = "mean"'), 'of = "mean"'),
        (
            ("above = 1000", 'above = 1000\nof = "sum"'),
            'of = "sum": needs sum in the [[histogram]]',
        ),
        (
            ("above = 1000", 'above = 1000\nof = "all_items"'),
            'of = "all_items": needs total_share in the [[histogram]]',
        ),
        (
            ("above = 1000", 'above = 1000\nof = "all_items"\nitems = ["tea"]'),
            'items: not with of = "all_items"',
        ),
        (('webhook = "https://example.org/hook"', ""), "webhook or topic"),
        (("https://", "ftp://"), "an address that begins with"),
        (
            ('webhook = "https://example.org/hook"', 'topic = "orders.totals"'),
            "a histogram has this topic",
        ),
        (('store = "board.duckdb"', ""), "needs dashboard.store"),
        (("[[alert]]", "[alert]"), "headed [[alert]] in double brackets"),
        (
            ("above = 1000", "above = 1000\nfalse_alarms = 0"),
            "a number above 0 and at most 1",
        ),
    ):
        path.write_text((BASE + ALERT).replace(*changed))
        with pytest.raises(SettingsError) as error:
            load_reader_settings(path)
        assert says in str(error.value), says
        assert "\n" not in str(error.value)
    assert math.isclose(margin_of(found, 2_000, 10, SD), 6.6 * SD, rel_tol=0.02)
