"""Settings ready to paste: what is pasted is the histogram that was measured; and the page in a browser, light and dark."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests import ROOT
from tests.replay.report.test_report import HOSTILE, a_run, made, report
from workers.replay.backtest.grid import settings_text
from workers.replay.backtest.results import Outcome
from workers.replay.report.charts import COLORS, INK, PALE
from workers.replay.report.pages import histogram_section
from workers.settings.settings import load, settings_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, ViewportSize

EXAMPLES = sorted((ROOT / "examples" / "mechanisms").glob("*.toml"))
FURTHER = {
    "numbers": 'buckets = { from = 0, to = 10, count = 4 }\nquantiles = [0.5, 0.9]\nitems = "lines[].price"',
    "conditions": 'domain = ["a"]\nwhere = [{ field = "type", in = ["x", 5], exists = true }, { field = "n", min = 1.5, max = 2 }]',
    "sums": 'domain = ["a"]\nsum = { field = "paid", from = -0.5, to = 100, step = 0.01, share = 0.4 }',
    "times": 'domain = ["a"]\nstart = 2026-11-21T00:00:00Z\ncounter = "tree"\nradix = 3',
    "labels": f"domain = {json.dumps([label for label in HOSTILE if chr(0) not in label], ensure_ascii=False)}",
}


def outcome(path: Path) -> Outcome:
    """A run with the settings of a file, as its results have them."""
    text = settings_text(load(path).histograms[0])
    return Outcome(
        row=replace(a_run(1, 1.0, 0), settings=text), varied={}, seeds=1, metrics={}
    )


def pasted(path: Path) -> None:
    document = tomllib.loads(path.read_text())
    section = tomllib.loads("\n".join(histogram_section(outcome(path))))
    again = settings_of(document | section, path.parent)
    assert again.histograms == load(path).histograms


def known_base(directory: Path, more: str) -> Path:
    text = (ROOT / "examples" / "mechanisms" / "known_base.toml").read_text()
    replaced = ("domain", "counter", "radix")
    lines = [line for line in text.splitlines() if not line.startswith(replaced)]
    (directory / "x.toml").write_text("\n".join([*lines, more]) + "\n")
    return directory / "x.toml"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_pasted_is_what_was_measured(path: Path) -> None:
    pasted(path)


@pytest.mark.parametrize("name", FURTHER)
def test_what_is_pasted_is_what_was_measured_with_other_settings(
    tmp_path: Path, name: str
) -> None:
    pasted(known_base(tmp_path, FURTHER[name]))


def test_a_long_domain_is_left_to_the_file(tmp_path: Path) -> None:
    labels = json.dumps([f"p{i}" for i in range(50)])
    section = histogram_section(outcome(known_base(tmp_path, f"domain = {labels}")))
    assert (
        section[-1] == "# domain or domain_file: as in your settings file (50 labels)"
    )
    assert "domain" not in tomllib.loads("\n".join(section))["histogram"][0]


def test_the_page_follows_dark_mode_and_copies_settings(
    chrome: Browser, tmp_path: Path
) -> None:
    text = report(tmp_path, made())
    pictures = text[text.index("<figure") :]
    colors = [f": {color.lower()}" for color in (INK, PALE, *COLORS, "#FFFFFF")]
    assert not [color for color in colors if color in pictures], "a colour that stays"
    found = {}
    wrong: list[str] = []

    def note(message: ConsoleMessage) -> None:
        wrong.append(message.text)

    for dark, width in ((False, 390), (True, 1400)):
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        size: ViewportSize = {"width": width, "height": 900}
        context = chrome.new_context(color_scheme=scheme, viewport=size)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", note)
        page.goto((tmp_path / "report.html").as_uri())
        of = "(e => [getComputedStyle(document.body).backgroundColor, getComputedStyle(e).fill, getComputedStyle(document.body).color])"
        found[dark] = page.evaluate(f"{of}(document.querySelector('figure svg path'))")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.click("button[data-copies=paste-1]")
        copied_is_said = (
            "document.querySelector('[data-copies=paste-1]').textContent === 'Copied'"
        )
        page.wait_for_function(copied_is_said, timeout=60_000)
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.inner_text("#paste-1") and copied.startswith(
            "[[histogram]]\nname = "
        )
        assert not wrong
        context.close()
    assert found[False] == [
        "rgb(255, 255, 255)",
        "rgb(255, 255, 255)",
        "rgb(26, 26, 26)",
    ]
    assert found[True][0] == found[True][1] != found[False][0]
    assert found[True][2] == "rgb(232, 234, 237)"
