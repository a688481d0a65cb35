"""The demo's page: the ordinary dashboard with true bars in red, from the demo's process only."""

import math
import re
import signal
import socket
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser

from tests.commands.demo.test_demo import PATIENCE_S, demo, until, workers_of
from tests.dashboard.browser import Window
from workers.cli import execute

pytestmark = pytest.mark.waits


def test_the_demos_page_shows_red_true_bars_beside_the_private_ones(
    chrome: Browser, tmp_path: Path
) -> None:
    """What `make demo` ends with; Ctrl-C while somebody looks at it leaves no process and nobody who listens."""
    directory = tmp_path / "here"
    with demo(directory, "--port", "0") as process:
        [line] = until(process, "Dashboard: ")[-1:]
        url = line.removeprefix("Dashboard: ").strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        window = Window(chrome)
        page = window.open(f"{url}?histogram=top12&key=JFK")
        truths = '[...document.querySelectorAll("tr.item .truth")].map((one) => one.textContent)'
        window.shows(f"{truths}.length > 0 && {truths}.every(Boolean)")
        assert "red is exact data" in page.inner_text("#demo")
        assert page.is_visible("th.truth")
        histograms = "(await (await fetch('api/histograms')).json())"
        live = f"async () => {histograms}.history.state === 'live'"
        page.wait_for_function(live, polling=500)
        # Ticks are counted from midnight on.
        window.reads("#board-title", r"tick [\d,]+$")
        # The first counts are within the noise, and no numbers: "at most 44".
        counts = '[...document.querySelectorAll("tr.item .count")].map((one) => one.textContent)'
        window.shows(f"{counts}.some((count) => /^[\\d,]+$/.test(count))")
        page.click("#follow")
        # A tick may be newer than its exact counts: while they are on their way, their places are empty.
        window.shows(f"{truths}.length === 12 && {truths}.every(Boolean)")
        rows = page.evaluate("""() => [...document.querySelectorAll("tr.item")].map((row) => [
            ...[".count", ".truth"].map((part) => Number(row.querySelector(part).textContent.replace(/,/g, "").replace("\u2212", "-"))),
            3 * parseFloat(row.querySelector(".sd").textContent),
            getComputedStyle(row.querySelector(".true")).backgroundColor,
        ])""")
        [end] = parse_qs(urlsplit(page.url).query)["at"]
        exact = f"{url}demo/exact?histogram=top12&key=JFK"
        ticks = page.evaluate("async (url) => (await fetch(url)).json()", exact)[
            "ticks"
        ]
        [told] = [dict(tick["items"]) for tick in ticks if tick["end"] == int(end)]
        assert [exact for _, exact, _, _ in rows] == [
            told[label] for _, label, _ in window.rows()
        ]
        assert len(rows) == 12
        # An error above 6 sd has a chance of 2e-9.
        known = [row for row in rows if row[0] is not None and not math.isnan(row[0])]
        assert known
        assert all(abs(private - exact) <= most for private, exact, most, _ in known)
        assert any(private != exact for private, exact, _, _ in known)
        assert {colour for *_, colour in rows} == {"rgb(196, 35, 35)"}
        assert window.wrong == []
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert workers_of(directory) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(
                ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])), 5
            )
    assert list(directory.iterdir()) == []


def test_a_port_that_is_taken_ends_the_demo_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert execute(["demo", "--seconds", "1", "--port", str(port)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"quietcount: --port {port}: taken on 127.0.0.1")
