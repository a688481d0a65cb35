"""Before memory or the history has been read, an answer is true or 503."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.dashboard.feeding import PATIENCE_S, Moment, Topics, embedded, recent
from tests.worker.harness import until
from workers.dashboard import ticks
from workers.dashboard.feed import Feed
from workers.dashboard.server import Background, Dashboard
from workers.dashboard.store import writing
from workers.dashboard.store.following import Backlog
from workers.settings.settings import DashboardSettings

pytestmark = pytest.mark.waits

TICKS = 5
ITEMS = [("tea", 2_086), ("cup", 1_462)]
SOURCES = ("memory", "history", "file")


class Held:
    """Sources that read nothing until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = {name: threading.Event() for name in SOURCES}
        read = Feed._read
        take = Backlog.take
        connect = writing.connect

        def held_read(feed: Feed, consumer: Any) -> Any:
            return (
                read(feed, consumer)
                if self.released["memory"].wait(0.1)
                else ([], None)
            )

        def held_take(backlog: Backlog) -> Any:
            return take(backlog) if self.released["history"].wait(0.1) else ({}, [])

        def held_connect(path: Any) -> Any:
            assert self.released["file"].wait(PATIENCE_S)
            return connect(path)

        monkeypatch.setattr(Feed, "_read", held_read)
        monkeypatch.setattr(Backlog, "take", held_take)
        monkeypatch.setattr("workers.dashboard.store.store.connect", held_connect)

    def release(self, *names: str) -> None:
        for name in names:
            self.released[name].set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(ticks, "READ_WAIT_S", 0.2)
    found = Held(monkeypatch)
    yield found
    found.release(*SOURCES)


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    with embedded("products") as found:
        for key in ("s1", "s2"):
            found.send(
                *(
                    recent(tick, ITEMS, ticks=TICKS, key=key)
                    for tick in range(1, TICKS + 1)
                )
            )
        yield found


def get(running: Background, path: str) -> tuple[int, dict[str, str], Any]:
    try:
        with urlopen(running.url + path, timeout=PATIENCE_S) as answer:
            status = answer.status
            headers = dict(answer.headers)
            body = answer.read()
    except HTTPError as error:
        status = error.code
        headers = dict(error.headers)
        body = error.read()
    is_json = headers["Content-Type"].startswith("application/json")
    return status, headers, json.loads(body) if is_json else body


def newest_end() -> int:
    return int(recent(TICKS, ITEMS, ticks=TICKS)["end"])


def asked(key: str) -> dict[str, str]:
    """Return an address of every question about a stream."""
    stream = f"histogram=products&key={quote(key)}"
    end = newest_end()
    return {
        "newest": f"api/snapshots?{stream}&limit=1",
        "after": f"api/snapshots?{stream}&after=0",
        "at": f"api/snapshots?{stream}&at={end}",
        "tick": f"api/snapshots?{stream}&epoch=1&tick={TICKS}",
        "window": f"api/snapshots?{stream}&window=2m",
        "window at": f"api/snapshots?{stream}&at={end}&window=2m",
        "history": f"api/history?{stream}&item=tea",
        "epochs": f"api/epochs?{stream}",
        "csv": f"api/history?{stream}&format=csv",
        "parquet": f"api/epochs?{stream}&format=parquet",
    }


FROM_MEMORY = {"newest", "after", "window"}
FROM_HISTORY = {"history", "epochs", "csv", "parquet"}


def assert_not_yet(answer: tuple[int, dict[str, str], Any], path: str) -> None:
    status, headers, body = answer
    assert status == 503, (path, status, body)
    assert int(headers["Retry-After"]) > 0
    assert any(word in body["error"] for word in ("read", "opened")), body


def ready_are(running: Background, ready: set[str]) -> None:
    """Check that questions in `ready` are answered, and that the others are told to come back."""
    for name, path in asked("s1").items():
        answer = get(running, path)
        if name in ready:
            assert answer[0] == 200, (path, answer)
        else:
            assert_not_yet(answer, path)
    # A key that nobody has published is not known to be unknown before that.
    for name, path in asked("nobody").items():
        status, headers, body = get(running, path)
        if status == 404:
            assert "no such key: 'nobody' of products" in body["error"]
            assert name in ready
        else:
            assert_not_yet((status, headers, body), path)


def everything() -> set[str]:
    return set(asked("s1"))


def is_live(running: Background, source: str) -> bool:
    dashboard = running.dashboard
    if source == "memory":
        return bool(dashboard.hub.state["kafka"] == "live")
    return dashboard.store.state == {"state": "live"}


def reads(running: Background, source: str) -> None:
    until(lambda: is_live(running, source), f"the {source} is read")


def test_before_anything_is_read_every_question_is_told_to_come_back(
    topics: Topics, held: Held
) -> None:
    held.release("file")
    with topics.served("products") as running:
        until(
            lambda: running.dashboard.hub.state["kafka"] == "reading",
            "the topic is there",
        )
        ready_are(running, set())
        status, headers, overview = get(running, "api/histograms")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert overview["error"].startswith("products: not read yet")
        assert overview["state"] == {"kafka": "reading"}, (
            "the page shows how Kafka stands"
        )
        assert get(running, "readyz")[0] == 503
        assert [get(running, path)[0] for path in ("", "healthz", "metrics")] == [
            200,
            200,
            200,
        ]
        held.release(*SOURCES)
        reads(running, "memory")
        reads(running, "history")
        ready_are(running, everything())
        assert get(running, "readyz")[0] == 200


def test_keys_are_listed_as_soon_as_they_are_read_and_never_as_none(
    topics: Topics, held: Held, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The history has them from an earlier run; the question waits until memory has them too."""
    stored = DashboardSettings(store=tmp_path / "history.duckdb")
    settings = replace(topics.settings("products"), history=stored)
    held.release(*SOURCES)
    with Background(Dashboard(settings, port=0)) as running:
        reads(running, "history")
    held.released["memory"].clear()
    with Background(Dashboard(settings, port=0)) as running:
        reads(running, "history")
        assert_not_yet(get(running, "api/histograms"), "api/histograms")
        # What the history has is answered; of another key the newest records are unread.
        ready_are(running, everything() - FROM_MEMORY)
        monkeypatch.setattr(ticks, "READ_WAIT_S", PATIENCE_S)
        with ThreadPoolExecutor(2) as threads:
            listing = threads.submit(get, running, "api/histograms")
            newest = threads.submit(get, running, asked("s1")["newest"])
            held.release("memory")
            status, _, overview = listing.result()
            assert (status, overview["histograms"][0]["keys"]) == (200, ["s1", "s2"])
            status, _, found = newest.result()
            assert (status, found["snapshots"][0]["tick"]) == (200, TICKS)


def test_what_only_the_history_has_is_awaited_while_the_page_is_live(
    topics: Topics, held: Held
) -> None:
    held.release("memory", "file")
    with topics.served("products") as running:
        reads(running, "memory")
        assert get(running, "api/histograms")[2]["histograms"][0]["keys"] == [
            "s1",
            "s2",
        ]
        of_memory = everything() - FROM_HISTORY
        for key, status in (("s1", 200), ("nobody", 404)):
            for name in ("newest", "after"):
                assert get(running, asked(key)[name])[0] == status
        for name, path in asked("s1").items():
            answer = get(running, path)
            if name in of_memory:
                assert answer[0] == 200
            else:
                assert_not_yet(answer, path)
        early = f"api/snapshots?histogram=products&key=s1&at={Moment.ms - 86_400_000}"
        answer = get(running, early)
        assert_not_yet(answer, early)
        assert answer[2]["nearest"]["after"]["tick"] == 1, "those in memory"
        assert get(running, "readyz")[0] == 200
        held.release("history")
        reads(running, "history")
        ready_are(running, everything())
        assert get(running, early)[0] == 404


def test_it_is_not_ready_before_the_file_of_the_history_is_opened(
    topics: Topics, held: Held
) -> None:
    held.release("memory", "history")
    with topics.served("products") as running:
        reads(running, "memory")
        status, headers, body = get(running, "readyz")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert body["history"] == {"state": "off", "why": "it is being opened"}
        assert_not_yet(get(running, asked("s1")["history"]), "history")
        held.release("file")
        until(lambda: get(running, "readyz")[0] == 200, "it is ready")


def test_a_topic_that_is_not_there_has_no_known_keys(
    topics: Topics, held: Held
) -> None:
    held.release(*SOURCES)
    shown = topics.settings("products", "later")
    with Background(Dashboard(shown, port=0)) as running:
        until(
            lambda: running.dashboard.hub.state["kafka"] == "missing", "it is missing"
        )
        reads(running, "history")
        status, _, overview = get(running, "api/histograms")
        assert status == 200
        listed = {one["histogram"]: one["keys"] for one in overview["histograms"]}
        assert listed == {"products": ["s1", "s2"], "later": None}
        for path in asked("s1").values():
            assert get(running, path)[0] == 200
            answer = get(running, path.replace("products", "later"))
            assert_not_yet(answer, path)
            assert "its topic does not exist" in answer[2]["error"]
