"""`quietcount dashboard` as an operator starts and ends it."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests import ROOT
from tests.dashboard.feeding import PATIENCE_S, embedded, message
from tests.worker.harness import until
from workers.cli import execute

pytestmark = pytest.mark.waits

TOKEN = "correct-horse-battery"
LEAST = '[worker]\nname = "orders"\n[kafka]\nbootstrap = "127.0.0.1:1"\n[[histogram]]\nname = "products"\n'


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command sets up logging for its process; here that is the tests'."""
    handlers = logging.root.handlers[:]
    level = logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@contextmanager
def dashboard(
    config: Path, *further: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [
        sys.executable,
        "-m",
        "workers.cli",
        "dashboard",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    command += further
    with (config.parent / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        address = r"Dashboard of \w+: (http://[\d.]+:\d+/)\n"
        found = re.fullmatch(address, process.stdout.readline())
        assert found is not None, (config.parent / "log").read_text()
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def asked(url: str, token: str | None = None) -> urllib.request.Request:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return urllib.request.Request(url, headers=headers)


def get(url: str, token: str | None = None) -> object:
    request = asked(url, token)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = tmp_path / "x.toml"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "token").chmod(0o600)
    with embedded("products") as topics:
        config.write_text(topics.toml("products"))
        topics.send(message(1), message(2))
        with dashboard(config, "--token-file", str(tmp_path / "token")) as (
            process,
            url,
        ):
            address = f"{url}api/snapshots?histogram=products&key=s1"
            times = "2023-11-14T22:13:30.000Z", "2023-11-14T22:13:40.000Z"
            sent = [message(tick, end_time=end) for tick, end in enumerate(times, 1)]
            until(
                lambda: get(address, TOKEN) == {"snapshots": sent, "more": False},
                "both",
            )
            with pytest.raises(HTTPError, match="401"):
                get(address)
            request = asked(f"{url}api/stream", TOKEN)
            with urllib.request.urlopen(request, timeout=PATIENCE_S):
                process.send_signal(number)
                assert process.wait(PATIENCE_S) == 0
    log = (tmp_path / "log").read_text()
    for word in ("Traceback", TOKEN, "tea"):
        assert word not in log


def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *further: str
) -> list[str]:
    """Return the lines that the command says when it ends with 2."""
    (tmp_path / "x.toml").write_text(LEAST)
    assert execute(["dashboard", "-c", str(tmp_path / "x.toml"), *further]) == 2
    return capsys.readouterr().err.splitlines()


def test_a_port_that_is_taken_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        [line] = refused(tmp_path, capsys, "--port", port)
    assert line.startswith(f"quietcount: --port {port}: taken on 127.0.0.1")


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    *_, line = refused(tmp_path, capsys, "--port", "0", "--host", host)
    assert line.startswith(f"quietcount: --host {host}")


def test_bad_settings_and_tokens_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("short")
    [line] = refused(tmp_path, capsys, "--token-file", str(tmp_path / "token"))
    assert "at least 16" in line
    assert execute(["dashboard", "-c", str(tmp_path / "none.toml")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "none.toml: no such file" in line


def test_open_to_the_network_without_a_token_is_said(tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text(LEAST)
    with dashboard(config, "--host", "0.0.0.0") as (_, url):
        port = url.rstrip("/").rpartition(":")[2]
        with pytest.raises(HTTPError, match="503") as refused:
            get(f"http://127.0.0.1:{port}/api/histograms")
        found = json.load(refused.value)
        assert found["state"]["kafka"] in ("connecting", "away")
        assert found["error"].startswith("products: not read yet: no broker")
    assert "without --token-file" in (tmp_path / "log").read_text()
