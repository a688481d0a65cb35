"""A dashboard process on a real broker: killed, with an unusable file, or with a full disk."""

import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.dashboard.feeding import PATIENCE_S, Topics, message
from tests.dashboard.store.making import at, at_ticks, thinned
from tests.dashboard.test_command import dashboard as started
from tests.worker.harness import until
from workers.dashboard.store.writing import connect

pytestmark = pytest.mark.waits
PARTITIONS = 2


class Page:
    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process = process
        self._url = url
        self._log = log

    def get(self, path: str, **query: object) -> tuple[int, Any]:
        try:
            with urlopen(
                f"{self._url}api/{path}?{urlencode(query)}", timeout=PATIENCE_S
            ) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("histograms")[1]["history"]
        return found

    def ticks(self, key: str = "s1") -> list[int]:
        status, found = self.get("history", histogram="products", key=key, limit=10_000)
        return [one["tick"] for one in found["entries"]] if status == 200 else []

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def dashboard(
    topics: Topics, directory: Path, settings: str = 'store = "history.duckdb"'
) -> Iterator[Page]:
    """A dashboard that keeps its history in the directory; killed at the end, if it still runs."""
    config = directory / "x.toml"
    config.write_text(f"{topics.toml('products')}[dashboard]\n{settings}\n")
    with started(config) as (process, url):
        yield Page(process, url, directory / "log")


def test_a_dashboard_that_is_killed_again_and_again_keeps_each_snapshot_once(
    topics: Topics, tmp_path: Path
) -> None:
    sent = 0
    for until_tick in (400, 900):
        topics.send(*at_ticks(range(sent + 1, until_tick + 1), "s1", "s2"))
        sent = until_tick
        with dashboard(topics, tmp_path) as page:
            # Some of it is there, and more comes while it is killed.
            until(
                lambda page=page: page.ticks() or page.ticks("s2"),  # type: ignore[misc]
                "something is kept",
                PATIENCE_S,
            )
            topics.send(*at_ticks(range(sent, sent + 300), "s3"))
    with dashboard(topics, tmp_path) as page:
        until(lambda: page.state() == {"state": "live"}, "all is read", PATIENCE_S)
        assert page.ticks("s1") == page.ticks("s2") == list(range(1, 901))
        apart = [*range(400, 700), *range(900, 1_200)]
        assert page.ticks("s3") == apart


def test_what_is_kept_is_thinned_while_it_runs_and_outlives_it(
    topics: Topics, tmp_path: Path
) -> None:
    sent = at_ticks(range(1, 1_501))
    topics.send(*sent)
    settings = 'store = "history.duckdb"\nkeep_ticks = "10m"\nkeep_hours = "2h"'
    left = [document["tick"] for document in thinned(sent, 600_000, 7_200_000)]
    assert 60 <= len(left) < 100
    with dashboard(topics, tmp_path, settings) as page:
        until(lambda: page.ticks() == left, "it is thinned", PATIENCE_S)
        page.process.terminate()
        assert page.process.wait(PATIENCE_S) == 0
    with dashboard(topics, tmp_path, settings) as page:
        until(lambda: page.state() == {"state": "live"}, "all is read", PATIENCE_S)
        assert page.ticks() == left


def test_a_full_disk_costs_the_history_and_not_the_dashboard(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send(message(1, **at(1)))
    with dashboard(topics, tmp_path) as page:
        until(lambda: page.ticks() == [1], "the first is kept", PATIENCE_S)
        resource.prlimit(
            page.process.pid, resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY)
        )
        topics.send(message(2, [(f"item {i}", i) for i in range(20_000)], **at(2)))
        why = "its file cannot be used: File too large"
        until(
            lambda: page.state() == {"state": "off", "why": why},
            "it is off",
            PATIENCE_S,
        )
        status, said = page.get("history", histogram="products", key="s1")
        assert (status, said) == (503, {"error": f"there is no history: {why}"})

        one: dict[str, Any] = {"histogram": "products", "key": "s1", "top": 1}

        def newest() -> bool:
            snapshots = page.get("snapshots", limit=1, **one)[1]["snapshots"]
            return bool(snapshots and snapshots[0]["tick"] == 2)

        until(newest, "the page goes on", PATIENCE_S)
        assert page.get("snapshots", at=at(2)["end"], **one)[0] == 200
        anything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(page.process.pid, resource.RLIMIT_FSIZE, anything)
        until(lambda: page.ticks() == [1, 2], "it has mended itself", PATIENCE_S)
        assert (
            page.log.count("history: off: its file cannot be used: File too large") == 1
        )
        assert "Traceback" not in page.log


def test_a_file_that_cannot_be_used_is_said_and_tried_again(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send(message(1, **at(1)))
    directory = tmp_path / "kept"
    path = tmp_path / "kept" / "history.duckdb"
    with dashboard(topics, tmp_path, 'store = "kept/history.duckdb"') as page:

        def off(why: str) -> None:
            until(lambda: page.state() == {"state": "off", "why": why}, why, PATIENCE_S)
            assert page.log.count(f"history: off: {why} (") == 1

        off("its file cannot be used: No such file or directory")
        one = {"histogram": "products", "key": "s1"}
        until(
            lambda: page.get("snapshots", **one)[1]["snapshots"],
            "the page shows",
            PATIENCE_S,
        )
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / path.name).write_text("something else " * 1_000)
        (tmp_path / "new").rename(directory)
        off("its file is of another version, or of another program")
        with connect(tmp_path / "held") as held:
            held.execute("update meta set version = 99")
            held.execute("checkpoint")
            (tmp_path / "held").replace(path)  # its lock goes with it
            off("its file is in use by another process")
        until(
            lambda: "another version" in str(page.state()),
            "another version",
            PATIENCE_S,
        )
        path.rename(tmp_path / "moved away")
        until(lambda: page.ticks() == [1], "the file is used", PATIENCE_S)
        assert page.log.count("the dashboard continues without it and retries") == 4
