"""The page's sentences on a promise are those of the terminal and reports, for every epsilon and delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests import ROOT
from tests.dashboard.browser import Window
from tests.dashboard.feeding import Show, embedded, recent
from tests.privacy.plan.test_noise import config
from tests.privacy.plan.test_words import GRID, WHETHER
from workers.mechanisms.accounting import rho_of
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.privacy.phrasing import grade, measures, up_to, verdict
from workers.privacy.total import charge_of, loss_table, total_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.waits

SOURCE = ROOT / "workers" / "dashboard" / "page" / "promise.js"


def test_the_page_says_the_same_to_the_letter(chrome: Browser) -> None:
    page = Window(chrome).page
    said = "[grade(e, d), verdict(e, d, w), measures(e, d), e && upTo(e), upTo(d)]"
    source = f"{SOURCE.read_text()}\nwindow.say = (e, d, w) => {said};"
    page.add_script_tag(content=source, type="module")
    page.wait_for_function("() => window.say")
    grid = [*GRID, (None, 1.0), (None, 1e-9)]
    say = "([grid, whether]) => grid.map(([e, d]) => say(e, d, whether))"
    found = page.evaluate(say, [grid, WHETHER])
    for (epsilon, delta), theirs in zip(grid, found, strict=True):
        own = [
            grade(epsilon, delta),
            verdict(epsilon, delta, WHETHER),
            measures(epsilon, delta),
        ]
        assert theirs[:3] == own, (epsilon, delta)
        for text, value in zip(theirs[3:], (epsilon, delta), strict=True):
            assert value is None or float(text.replace("\u2212", "-")) == float(
                up_to(value)
            ), value


def test_another_sentence_is_noticed(chrome: Browser) -> None:
    page = Window(chrome).page
    wrong = SOURCE.read_text(encoding="utf-8").replace(
        "can be practically sure", "can hardly tell"
    )
    page.add_script_tag(content=wrong + "\nwindow.say = verdict;", type="module")
    page.wait_for_function("() => window.say")
    said = page.evaluate("([e, d, w]) => say(e, d, w)", [20, 1e-9, WHETHER])
    assert said != verdict(20, 1e-9, WHETHER)


def test_the_total_of_the_page_is_that_of_the_plan_and_the_table_says_what_one_person_loses(
    chrome: Browser,
) -> None:
    """Added-up epsilons were twice what the terminal said; and the table is the plan's, figure for figure."""
    names = ("products", "others")
    made = [config(UnkBaseConfig, name=name, epsilon=1.0, delta=1e-9) for name in names]
    total = total_of([charge_of(one, build(one)) for one in made])
    window = Window(chrome, width=1400, height=1000)
    with embedded("products", "others") as topics:
        for one in made:
            promise = msgspec.to_builtins(build(one).guarantee)
            own = {"histogram": one.name, "guarantee": promise}
            topics.send(*(recent(t, [("tea", 500)], ticks=2, **own) for t in (1, 2)))
        with topics.served(*names, horizon=made[0].horizon_ticks) as dashboard:
            page = window.open(f"{dashboard.url}?histogram=products&key=s1")
            # Whether the second topic has been read decides what the first answer holds.
            window.shows(
                '(document.querySelector("#guarantee")?.textContent ?? "").includes("There are 2 histograms")'
            )
            said = page.text_content("#guarantee") or ""
            cells = page.evaluate(
                '() => [...document.querySelectorAll(".person tbody tr")].map((r) => [...r.children].map((c) => c.textContent))'
            )
    assert (
        f"costs ε = {up_to(total.epsilon)}, δ = 2e\u22129 in all" in said
        and total.epsilon < 1.5
    )
    # A snapshot's tick is `RECENT_MS` wide here, so epochs are not those of the plan: the first column is for one epoch.
    _, rows = loss_table(total.person, "event")
    expected = [[row[0], row[1].replace("e-0", "e\u2212")] for row in rows]
    assert [row[:2] for row in cells] == expected
    assert "better than by a coin toss, but not reliably" in said and window.wrong == []


@pytest.mark.parametrize(
    ("unit", "where"),
    [
        ("event", "Where the same event counts in all of them, it costs"),
        ("user", "Where the same user counts in all of them, in one epoch of each, it"),
    ],
)
def test_the_total_of_users_is_that_of_one_epoch_of_each_histogram(
    chrome: Browser, unit: str, where: str, show: Show
) -> None:
    """A user counts in every epoch, and every epoch costs; an event is in one."""
    window = Window(chrome)
    _, url = show(recent(1, [("tea", 500)], ticks=1))
    page = window.open(url)
    promise = {"unit": unit, "epsilon": 1.0, "delta": 1e-9}
    paragraphs = page.evaluate(
        """async (promise) => {
            const { guarantee } = await import("/page/words.js");
            const snapshot = { histogram: "products", start: 0, end: 60000, guarantee: { rho: 0.01, ...promise } };
            const { read, more } = guarantee(snapshot, [], { histograms: ["products", "others"], ...promise });
            return [...read, ...more].map(([, text]) => text);
        }""",
        promise,
    )
    assert [where in text for text in paragraphs].count(True) == 1


SOUND = "limits what can be learned about a single event"
WEAK = "too little to protect"


@pytest.mark.parametrize(
    ("epsilon", "delta", "lead", "parts"),
    [
        (
            0.1,
            1e-9,
            SOUND,
            ["slightly better than by a coin toss", "52.5 times in 100", "1.11 times"],
        ),
        (4.0, 1e-5, SOUND, ["can be nearly sure", "98.3 times in 100", "1 in 100,000"]),
        (
            20.0,
            1e-9,
            WEAK,
            ["practically sure", "the promise is weak", "nearly every time"],
        ),
        (
            0.1,
            0.5,
            WEAK,
            ["with a chance of up to 50 in 100", "next to nothing is promised"],
        ),
    ],
)
def test_the_page_says_what_the_figures_bear_out(
    chrome: Browser,
    epsilon: float,
    delta: float,
    lead: str,
    parts: list[str],
    show: Show,
) -> None:
    """Once it said "can hardly tell" at every epsilon."""
    window = Window(chrome, width=1400, height=1000)
    promise = {"unit": "event", "epsilon": epsilon, "delta": delta}
    promise["rho"] = rho_of(epsilon, delta / 2)
    _, url = show(recent(1, [("tea", 500)], ticks=1, guarantee=promise))
    page = window.open(f"{url}?histogram=products&key=s1")
    window.shows('document.querySelector(".person") !== null')
    said = page.text_content("#guarantee") or ""
    shown = page.inner_text("#lead")
    weak = page.locator("#guarantee .promise.weak").count()
    assert lead in shown
    for part in parts:
        assert part in said
    assert weak == (lead == WEAK)
    assert window.wrong == []
