"""The page's words of a promise, run in a browser: those of the terminal and the reports, to the letter, for all epsilon and delta."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import Window, browser
from tests.plan.test_words import GRID, WHETHER
from workers.plan.person.words import grade, measures, up_to, verdict

SOURCE = Path(__file__).parent.parent.parent / "workers" / "dashboard" / "page" / "promise.js"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def test_the_page_says_the_same_to_the_letter(chrome: Browser) -> None:
    """Two wordings would part at the first change of either."""
    page = Window(chrome).page
    page.add_script_tag(
        content=SOURCE.read_text(encoding="utf-8")
        + "\nwindow.say = (e, d, w) => [grade(e, d), verdict(e, d, w), measures(e, d), e && upTo(e), upTo(d)];",
        type="module",
    )
    page.wait_for_function("() => window.say")
    grid = [*GRID, (None, 1.0), (None, 1e-9)]
    found = page.evaluate("([grid, whether]) => grid.map(([e, d]) => say(e, d, whether))", [grid, WHETHER])
    for (epsilon, delta), theirs in zip(grid, found, strict=True):
        own = [grade(epsilon, delta), verdict(epsilon, delta, WHETHER), measures(epsilon, delta)]
        assert theirs[:3] == own, (epsilon, delta)
        for text, value in zip(theirs[3:], (epsilon, delta), strict=True):
            assert value is None or float(text.replace("\u2212", "-")) == float(up_to(value)), value


def test_another_sentence_is_noticed(chrome: Browser) -> None:
    """A comparison that lets everything pass compares nothing."""
    page = Window(chrome).page
    wrong = SOURCE.read_text(encoding="utf-8").replace("may be nearly sure", "can hardly tell")
    page.add_script_tag(content=wrong + "\nwindow.say = verdict;", type="module")
    page.wait_for_function("() => window.say")
    assert page.evaluate("([e, d, w]) => say(e, d, w)", [20, 1e-9, WHETHER]) != verdict(20, 1e-9, WHETHER)
