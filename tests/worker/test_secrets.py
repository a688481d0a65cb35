"""Planted secrets never appear in a worker's log (even with --debug), metrics or failures."""

import base64
import json
import re
from pathlib import Path

import pytest

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
from tests.worker.test_metrics import ask, ready

pytestmark = pytest.mark.waits

# None of the multiples below is an ephemeral port.
COUNT = 5_021
EVENTS = 3
SECRETS = ("Planted", "PLANTED", "Zm9yLXlvdXI")
# As whole numbers only: a long fraction, or a random name, may hold any digits. Prometheus writes 5
# as 5.0.
SUMS = (COUNT, EVENTS * COUNT, 2 * EVENTS * COUNT)
COUNTS = re.compile("|".join(rf"(?<![\w.]){n}(?:\.0)?(?![\w.])" for n in SUMS))

# A worker whose stage 1 fails over an event, with the event's label in the message of the
# exception.
FAILING = """\
import sys
from workers.pipeline.intake import Intake
from workers.cli import main

def add(self, events, read_ms, came_late=None):
    if len(events.times):
        try:
            seen = events.views[""]
            key, label = seen.key_names.name(seen.keys[0]), seen.label_names.name(seen.labels[0])
            raise KeyError(f"PlantedCause of {key}")
        except KeyError as error:
            raise ValueError(f"PlantedFailure {label} {key}") from error

Intake.add = add
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def site(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with all secrets planted, not yet run."""
    # Tables of the noise for much larger counts cost every worker seconds.
    histograms = [unk(max_count=COUNT, horizon=1024), known(domain=["PlantedDomain"])]
    directory = tmp_path_factory.mktemp("secrets")
    worker = {"metrics_port": 0}
    made = Site(bootstrap, directory, histograms, partitions=2, owners=1, worker=worker)
    event = sale(
        {"PlantedLabel": COUNT}, now_ms(), "PlantedKey", customer="PlantedUser"
    )
    for partition in range(2):
        made.produce(partition, [event] * EVENTS, key=b"PlantedRecordKey")
        broken: list[object] = [
            b'{"PlantedBroken',
            b'{"key": "PlantedKey", "items": {"PlantedLabel": -%d}, "ts": 1}' % COUNT,
            b'{"key": "PlantedKey", "items": ["Planted", %d], "ts": "PlantedTime"}'
            % COUNT,
            b'["PlantedList", "Zm9yLXlvdXI"]',
            {**event, "items": "PlantedLong" * 200},
        ]
        made.produce(partition, broken, key=b"PlantedRecordKey")
    return made


def start(site: Site, name: str, *options: str, code: str | None = None) -> Worker:
    runner = ("-c", code) if code else ("-m", "workers.cli")
    return Worker(site.config, site.directory / f"{name}.log", runner, options)


def assert_silent(site: Site, text: str) -> None:
    """Assert that a text holds no planted secret and no form of the key."""
    key = (site.directory / "key").read_bytes()
    base64s = base64.b64encode(key), base64.urlsafe_b64encode(key)
    forms = key.hex(), repr(key)[2:-1], *(form.decode() for form in base64s)
    assert text
    for secret in (*SECRETS, *(form[:10] for form in forms)):
        assert secret not in text, [
            line for line in text.splitlines() if secret in line
        ]
    assert not COUNTS.search(text)


def objects(text: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in text.splitlines()]
    for entry in found:
        assert {"time", "level", "logger", "message"} <= entry.keys()
    return found


def test_a_worker_that_rejects_publishes_and_is_fenced_shows_nothing(
    site: Site,
) -> None:
    """The log goes to machines that may not hold exact data."""
    with start(site, "fenced", "--debug", "run", "--log-format", "json") as worker:
        until(lambda: ready(worker) or not worker.running(), "it is ready")
        until(lambda: "rejected" in worker.output(), "it rejects")
        until(site.snapshots, "it publishes")
        assert site.contributed()
        for path in ("/metrics", "/readyz", "/healthz", "/PlantedPath"):
            assert_silent(site, ask(worker, path)[1])
        newer = site.connection.producer(f"{site.name}-contribute-0")
        newer.init_transactions(120)
        until(lambda: "newer owner" in worker.output(), "it is fenced")
        assert worker.stop() == 0
        entries = objects(worker.output())
    assert_silent(site, worker.output())
    happened = {entry.get("event") for entry in entries}
    assert {"rejected", "fenced", "acquired", "given_up"} <= happened
    assert {"debug", "info", "warning"} <= {entry["level"] for entry in entries}


@pytest.mark.parametrize(("options", "form"), [((), "text"), (("--debug",), "json")])
def test_a_failure_that_quotes_an_event_is_told_without_the_quotation(
    site: Site, options: tuple[str, ...], form: str
) -> None:
    """Library exceptions quote their input; readers of the log need the location, not the data."""
    at = now_ms()
    site.produce(1, [{"key": "PlantedKey", "items": "PlantedLabel", "ts": at}])
    arguments = *options, "run", "--log-format", form
    with start(site, f"failing-{form}", *arguments, code=FAILING) as worker:
        assert worker.ended() == 70
    text = worker.output()
    assert_silent(site, text)
    assert "ValueError" in text
    if form == "json":
        errors = [entry["error"] for entry in objects(text) if "error" in entry]
        assert any(
            "KeyError" in str(error) and "in add" in str(error) for error in errors
        )
    else:
        assert "Traceback" in text and "in add" in text


def test_refused_state_is_told_without_what_was_found(site: Site) -> None:
    """Foreign records in a topic may be anything, including data."""
    site.produce(
        0, [b'{"PlantedForeign": %d}' % COUNT], topic=f"{site.name}.contributions"
    )
    with start(site, "refused", "--debug", "run", "--log-format", "json") as worker:
        assert worker.ended() == 2
    assert_silent(site, worker.output())
    last = [entry for entry in objects(worker.output()) if entry["level"] == "critical"]
    assert len(last) == 1 and "written by something else" in str(last[0]["message"])


def test_settings_that_are_refused_are_json_too_where_that_was_asked_for(
    tmp_path: Path,
) -> None:
    """A log collector that expects JSON would lose the one line that matters."""
    done = quietcount("run", "--log-format", "json", "-c", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    [entry] = objects(done.stderr)
    assert (entry["level"], "no such file" in str(entry["message"])) == (
        "critical",
        True,
    )
