"""Metrics and health of real workers: correct over a rebalance, one port per worker."""

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.worker.harness import (
    Site,
    Worker,
    known,
    now_ms,
    quietcount,
    sale,
    unk,
    until,
)

pytestmark = pytest.mark.waits


def ask(worker: Worker, path: str) -> tuple[int, str]:
    """Return status and body; 0 while the worker does not listen yet, or is too busy to answer."""
    found = re.search(r"http://127\.0\.0\.1:\d+", worker.output())
    if found is None:
        return 0, ""
    try:
        with urllib.request.urlopen(found[0] + path, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(worker: Worker) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(ask(worker, "/metrics")[1]):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def total(name: str, *workers: Worker, **labels: str) -> float:
    samples = [each for worker in workers for each in metrics(worker).get(name, [])]
    return sum(value for found, value in samples if labels.items() <= found.items())


def owned(worker: Worker, stage: str) -> set[str]:
    samples = metrics(worker).get("quietcount_commit_age_seconds", [])
    return {labels["partition"] for labels, _ in samples if labels["stage"] == stage}


def ready(worker: Worker) -> bool:
    return ask(worker, "/readyz")[0] == 200


def test_figures_stay_exact_when_partitions_move(
    bootstrap: str, tmp_path: Path
) -> None:
    """Operators sum over workers: nothing may be counted twice, no partition reported by two."""
    site = Site(bootstrap, tmp_path, [unk(), known()], worker={"metrics_port": 0})
    sent = 0

    def send(number: int) -> None:
        nonlocal sent
        at = now_ms()
        for partition in range(4):
            site.produce(partition, [sale(["a"], at)] * number + [b"{"])
        sent += 4 * number

    send(500)
    with site.running("one") as one:
        until(lambda: ready(one), "the first is ready")
        until(
            lambda: total("quietcount_events_total", one) == sent,
            "every event is counted",
        )
        assert total("quietcount_partitions_assigned", one, stage="contribute") == 4
        with site.running("two") as two:
            until(
                lambda: ready(two) and owned(two, "contribute") and ready(one),
                "it has a share",
            )
            send(500)
            until(
                lambda: total("quietcount_events_total", one, two) >= sent,
                "all is counted",
            )
            for stage, number in (("contribute", 4), ("release", 2)):
                shown = [str(partition) for partition in range(number)]
                until(
                    lambda s=stage, p=shown: (
                        sorted([*owned(one, s), *owned(two, s)]) == p
                    ),  # type: ignore[misc]  # bound now
                    "each is shown by one",
                )
            rejected = partial(
                total, "quietcount_rejects_total", one, two, reason="not JSON"
            )
            until(lambda: rejected() >= 8, "and what is broken")
            assert rejected() == 8
            assert total("quietcount_events_total", one, two) == sent
            assert total("quietcount_partitions_given_up_total", one) >= 6
            assert total("quietcount_recovery_seconds_count", one) >= 2
            last_ms = now_ms()
            site.wait_published(last_ms)
        until(lambda: owned(one, "release") == {"0", "1"}, "all is back")
        until(lambda: ready(one), "and caught up")
        seen = metrics(one)
        # asked for later: it goes on publishing
        snapshots = Counter(s["histogram"] for s in site.snapshots())
        assert seen["quietcount_snapshots_total"][0][1] <= snapshots["items"]
        ledgers = seen["quietcount_ledger_rows"]
        rows = {labels["histogram"]: value for labels, value in ledgers if value}
        assert rows == {"items": 1, "known": 3}
        for name in (
            "quietcount_watermark_lag_seconds",
            "quietcount_release_lag_seconds",
        ):
            # s, not ms
            assert all(-1 < value < 600 for _, value in seen[name]), seen[name]
        body = json.loads(ask(one, "/readyz")[1])
        assert len(body["partitions"]) == 6
        assert one.stop() == 0


def test_a_port_in_use_ends_the_second_worker_with_one_line(
    bootstrap: str, tmp_path: Path
) -> None:
    """When two workers share settings and machine, the line names the problem and the remedy."""
    site = Site(
        bootstrap, tmp_path, [unk()], partitions=1, owners=1, worker={"metrics_port": 0}
    )
    with site.running() as worker:
        until(lambda: ask(worker, "/healthz")[0] == 200, "it listens")
        port = re.findall(r"http://127\.0\.0\.1:(\d+)", worker.output())[0]
        done = quietcount("run", "-c", str(site.config), "--metrics-port", port)
        assert done.returncode == 2
        assert f"worker.metrics_port = {port}" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_workers_of_one_settings_file_have_their_own_directories(
    bootstrap: str, tmp_path: Path
) -> None:
    """`--data-dir` replaces the setting, and is no part of what workers must agree on."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=2, owners=2)
    log = tmp_path / "other.log"
    other = Worker(
        site.config, log, options=("run", "--data-dir", str(tmp_path / "other"))
    )
    with site.running("data"), other:
        at = now_ms()
        for partition in range(2):
            site.produce(partition, [sale("a", at)])
        site.wait_published(at)
        until(
            lambda: all(any((tmp_path / d).glob("*-*")) for d in ("data", "other")),
            "both own some",
        )
        assert other.stop() == 0
    (tmp_path / "file").touch()
    done = quietcount(
        "run", "-c", str(site.config), "--data-dir", str(tmp_path / "file")
    )
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert "--data-dir = " in said and "give a directory that can be written" in said


def test_a_worker_that_rejects_nearly_all_says_so(
    bootstrap: str, tmp_path: Path
) -> None:
    """`/readyz`, the metric and the log agree, and the command that they name exists."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=2, worker={"metrics_port": 0})
    begin = now_ms() - 1_000
    site.produce(0, [sale([f"p{i % 3}"], begin + i, None) for i in range(300)])
    with site.running() as worker:
        until(
            lambda: "nearly all records are rejected (" in worker.output(), "the line"
        )
        worker.at_work()
        assert not ready(worker)
        body = ask(worker, "/readyz")[1]
        assert (
            "nearly all records are rejected" in body
            and "quietcount check -c FILE" in body
        )
        assert total("quietcount_rejecting", worker, topic=site.topic) == 1
        begin = now_ms() - 1_000
        site.produce(1, [sale([f"p{i % 3}"], begin + i) for i in range(400)])
        until(
            lambda: "its records are accepted again" in worker.output(),
            "the other line",
        )
        until(lambda: ready(worker), "it is ready")
    assert worker.output().count("nearly all records are rejected (") == 1
