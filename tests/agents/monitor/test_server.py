"""The operator's port: what it answers, and what it refuses."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agents.monitor.scene import Scene
from workers.agents import worker
from workers.agents.monitor import OperatorPort
from workers.agents.topics import connection_of
from workers.kafka.clients import Connection
from workers.kafka.handover import Handover
from workers.runtime.errors import KafkaAway, SettingsError
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings

PARTITIONS = {"contribute": 2, "release": 1}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def port(scene: Scene) -> Iterator[int]:
    with OperatorPort(scene.settings, 0) as operator:
        operator.show(scene.handover, PARTITIONS)
        assert operator.address is not None and operator.address.startswith(
            "http://127.0.0.1:"
        )
        yield int(operator.address.rpartition(":")[2])


def ask(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    return response, response.read()


def series(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_every_series_names_its_worker_in_prometheus_text(
    scene: Scene, port: int
) -> None:
    scene.handover.metrics.events.inc(5)
    response, body = ask(port, "/metrics")
    assert (response.status, response.headers["Content-Type"].split(";")[0]) == (
        200,
        "text/plain",
    )
    found = series(body)
    assert found["quietcount_events_total", frozenset({("worker", "orders")})] == 5
    ours = [labels for name, labels in found if name.startswith("quietcount_")]
    assert ours and all(("worker", "orders") in labels for labels in ours)
    assert not any(name.endswith("_created") for name, _ in found)


def test_a_worker_that_waits_for_kafka_after_a_run_is_alive(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage of minutes ends the run: a restart of the process would not help."""
    answers: list[int] = []

    with OperatorPort(scene.settings, 0) as operator:
        operator.show(scene.handover, PARTITIONS)
        port = int((operator.address or "").rpartition(":")[2])
        # The loop of that run turned last two minutes ago.
        scene.handover.beat_s = time.monotonic() - 120

        def check_topics(settings: Settings, connection: Connection) -> None:
            if operator.address is not None and len(answers) < 2:
                answers.append(ask(port, "/healthz")[0].status)
                raise KafkaAway("no broker answers")

        monkeypatch.setattr(worker, "check_topics", check_topics)
        connection = connection_of(scene.settings)
        worker._topics(scene.settings, connection, Metrics(), operator, 0.0)
    # Before the first retry the run that has ended is still shown.
    assert answers == [503, 200]


def test_gauges_of_a_partition_go_with_it(scene: Scene, port: int) -> None:
    def partitions(name: str) -> set[str]:
        found = series(ask(port, "/metrics")[1])
        return {dict(labels)["partition"] for metric, labels in found if metric == name}

    for shard in scene.contribute:
        shard._intake.watermark = 1
    assert partitions("quietcount_watermark_lag_seconds") == {"0", "1"}
    assert partitions("quietcount_ledger_rows") == {"0"}
    scene.contribute[0].closed = True
    assert partitions("quietcount_watermark_lag_seconds") == {"1"}
    scene.handover.shards = {}
    scene.handover.lags = {}
    for name in ("watermark_lag_seconds", "ledger_rows", "consumer_lag_records"):
        assert partitions(f"quietcount_{name}") == set()


def test_health_and_readiness_are_json_with_reasons(scene: Scene, port: int) -> None:
    scene.handover.assigned = False
    response, body = ask(port, "/readyz")
    assert (response.status, response.headers["Content-Type"]) == (
        503,
        "application/json",
    )
    assert json.loads(body)["reasons"]
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_read_only(port: int, method: str) -> None:
    response, _ = ask(port, "/metrics", method)
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


def test_head_has_no_body_other_paths_are_missing_and_no_version_is_shown(
    port: int,
) -> None:
    response, body = ask(port, "/healthz", "HEAD")
    assert body == b"" and int(response.headers["Content-Length"]) > 0
    response, body = ask(port, "/table/")
    assert response.status == 404
    assert response.headers["Server"] == "quietcount"


@pytest.mark.parametrize("version", ["1.0.0", "0.0.1", "x", "1.x", "2.\xff"])
def test_openmetrics_is_served_on_request(port: int, version: str) -> None:
    response, body = ask(
        port, "/metrics", Accept=f"application/openmetrics-text; version={version}"
    )
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_without_a_port_nothing_listens(scene: Scene) -> None:
    with OperatorPort(scene.settings, None) as operator:
        operator.show(scene.handover, PARTITIONS)
        assert operator.address is None


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"], ids=["taken", "not ours"])
def test_an_address_that_cannot_be_opened_is_one_clear_line(
    tmp_path: Path, host: str
) -> None:
    scene = Scene(tmp_path, f'metrics_host = "{host}"')
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        words = (
            rf"worker.metrics_port = {taken}: cannot listen on {host}.*--metrics-port"
        )
        with (
            pytest.raises(SettingsError, match=words),
            OperatorPort(scene.settings, taken) as port,
        ):
            port.show(scene.handover, PARTITIONS)


def test_partitions_of_two_topics_under_one_number_are_two_series(
    scene: Scene, port: int
) -> None:
    places = [("orders-eu", 0), ("orders-us", 0)]
    handover = scene.handover
    handover.shards = dict(zip(places, scene.contribute, strict=True))
    handover.lags = dict(zip(places, handover.lags.values(), strict=False))
    for shard in scene.contribute:
        shard._intake.watermark = 1
    found = series(ask(port, "/metrics")[1])
    lags = ("watermark_lag_seconds", "consumer_lag_records", "consumer_lag_seconds")
    for name in (*lags, "commit_age_seconds"):
        shown = [
            dict(labels) for metric, labels in found if metric == f"quietcount_{name}"
        ]
        assert (
            sorted((one["topic"], int(one["partition"])) for one in shown) == places
        ), name
    told = json.loads(ask(port, "/readyz")[1])["partitions"]
    assert [(one["topic"], one["partition"]) for one in told] == places


def test_one_port_shows_first_that_kafka_is_awaited_and_then_the_worker(
    scene: Scene,
) -> None:
    waiting = Handover({})
    waiting.metrics.outage.begin("no broker answers")
    with OperatorPort(scene.settings, 0) as operator:
        operator.show(waiting, {})
        assert operator.address is not None
        port = int(operator.address.rpartition(":")[2])
        assert ask(port, "/healthz")[0].status == 200
        response, body = ask(port, "/readyz")
        assert (
            response.status == 503
            and "no broker answers" in json.loads(body)["reasons"][0]
        )
        worker = frozenset({("worker", "orders")})
        found = series(ask(port, "/metrics")[1])
        assert found["quietcount_kafka_away_seconds", worker] > 0
        assert found["quietcount_kafka_outages_total", worker] == 1
        assert found["quietcount_ready", worker] == 0
        operator.show(scene.handover, PARTITIONS)
        assert operator.address.endswith(f":{port}")
        found = series(ask(port, "/metrics")[1])
        assert found["quietcount_kafka_away_seconds", worker] == 0
        assert (
            "quietcount_partitions_assigned",
            worker | {("stage", "release")},
        ) in found
