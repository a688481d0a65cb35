"""The page with late answers, changed streams and odd snapshots: nothing false, and it never stops."""

from typing import Any

import pytest

from tests.dashboard.browser import Window
from tests.dashboard.feeding import GONE, Show, embedded, message, recent

pytestmark = pytest.mark.waits

#: Answers from addresses that contain a word come later.
LATE = """(word) => {
    const now = window.fetch;
    window.fetch = async (address, options) => {
        if (address.includes(word)) await new Promise((resume) => setTimeout(resume, 700));
        return now(address, options);
    };
}"""
#: Collects every text that the board and the guarantee have shown in place of counts.
COLLECT = """addEventListener("DOMContentLoaded", () => {
    window.said = new Set();
    const look = () => {
        for (const name of ["#empty", "#guarantee"]) {
            const place = document.querySelector(name);
            if (!place.hidden) window.said.add(place.textContent);
        }
    };
    new MutationObserver(look).observe(document, { childList: true, subtree: true, attributes: true });
})"""
#: Draws nothing until it is told to go on, and notes that tick 2 has arrived.
HOLD = """() => {
    const [frame, parse, held] = [window.requestAnimationFrame, JSON.parse, []];
    window.requestAnimationFrame = (draw) => held.push(draw);
    JSON.parse = (text) => {
        const value = parse(text);
        if (value?.tick === 2) setTimeout(() => (window.arrived = true));
        return value;
    };
    window.goOn = () => {
        window.requestAnimationFrame = frame;
        for (const draw of held) frame(draw);
    };
}"""
#: Fields with which the page once stopped drawing, or never ended to.
ODD: list[dict[str, Any]] = [
    {"mechanism": "constructor"},
    {"mechanism": "__proto__", "threshold": 3.0},
    {"items": GONE},
    {"items": GONE, "answers": "none"},
    {"items": GONE, "answers": [1, None, {"query": 3}]},
    {"items": GONE, "query": 5, "value": {"a": 1}},
    {"items": [["tea", 2**53 - 1]], "sd": None},
    {"threshold": 1e300},
]


def test_nothing_is_called_unpublished_before_the_answer_is_here_and_the_guarantee_stays(
    window: Window, show: Show
) -> None:
    """The other key has the same guarantee, so that one stays while its answer is awaited."""
    said = "[...window.said].join(' ')"
    _, url = show(*(recent(2, [("tea", 9)], ticks=2, key=key) for key in ("s1", "s2")))
    window.page.add_init_script(f"{COLLECT}; ({LATE})('api/s')")
    page = window.open(url)
    assert "Asking" in page.evaluate(said) and "Nothing" not in page.evaluate(said)
    window.counts("#key option", 2)
    before = page.text_content("#guarantee") or ""
    assert "Anyone who sees all of this" in before
    page.evaluate("window.said.clear()")
    page.select_option("#key", "s2")
    window.reads("#board-title", "s2, tick")
    assert "Asking" in page.evaluate(said)
    assert (page.text_content("#guarantee") or "") == before


def test_pause_holds_the_tick_that_is_seen(window: Window, show: Show) -> None:
    topics, url = show(recent(1, [("tea", 900)], ticks=2))
    page = window.open(url)
    page.evaluate(HOLD)
    newer = recent(2, [("tea", 3_000)], ticks=2)
    topics.send(newer)
    page.wait_for_function("() => window.arrived", polling=100)
    page.evaluate("document.querySelector('#follow').click()")
    page.evaluate("window.goOn()")
    window.reads("#follow", "Follow")
    assert page.inner_text("tr.item .count") == "900"
    at = page.evaluate("Number(new URLSearchParams(location.search).get('at'))")
    assert at < newer["end"]


def test_odd_snapshots_do_not_stop_the_page(window: Window) -> None:
    with embedded("products") as topics:
        for index, fields in enumerate(ODD):
            topics.send(message(5, key=f"odd {index}", **fields))
        topics.send(message(5, key="sound"))
        with topics.served("products") as dashboard:
            for index in range(len(ODD)):
                window.page.goto(f"{dashboard.url}?key=odd%20{index}")
                window.reads("#board-title", f"odd {index}, tick 5")
                window.shows('document.querySelector("#guarantee dl") !== null')
                window.page.select_option("#key", "sound")
                window.reads("#board-title", "sound, tick 5")
                window.reads("tr.item .pick", "^tea$")
                assert window.wrong == [], ODD[index]


def test_a_label_without_a_shape_can_be_seen_and_picked(
    window: Window, show: Show
) -> None:
    labels = {
        "\u200b": "U+200B",
        "  ": "U+0020 U+0020",
        "\u3164": "U+3164",
        "\n": "\u240a",
        "": "(no name)",
        "\u0924\u093e": "\u0924\u093e",
    }
    _, url = show(
        recent(2, [(label, 90 - i) for i, label in enumerate(labels)], ticks=2)
    )
    page = window.open(url)
    assert [label for _, label, _ in window.rows()] == list(labels.values())
    widths = page.evaluate(
        "[...document.querySelectorAll('.pick')].map((e) => e.getBoundingClientRect().width)"
    )
    assert min(widths) > 5
