"""The page with hostile labels of any kind, and with a thousand items for each of fifty keys."""

import pytest

from tests.dashboard.browser import Window, text
from tests.dashboard.feeding import Show, answer, embedded, recent

pytestmark = pytest.mark.waits

HOSTILE = [
    "<img src=x onerror=\"document.title='taken'\">",
    "</span><script>document.title='taken'</script>",
    "{{constructor.constructor('document.title=1')()}}",
    "javascript:document.title='taken'",
    "שלום עולם \u202e txt.exe \u202d",
    "\u202e\u2067 reversed",
    "a\nb\tc\r\0d",
    "\u0300" * 300,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family",
    "x" * 1024,
    "   ",
    "__proto__",
    "constructor",
    "'; DROP TABLE items; --",
    "&lt;b&gt; &amp;",
]
#: Counts the nodes that are put into the document from now on.
COUNT_NODES = """() => {
    window.made = 0;
    const nodes = (node) => 1 + (node.querySelectorAll ? node.querySelectorAll("*").length : 0);
    new MutationObserver((records) => {
        for (const record of records) for (const node of record.addedNodes) window.made += nodes(node);
    }).observe(document, { childList: true, subtree: true });
}"""


def test_hostile_labels_are_text_and_nothing_else(window: Window) -> None:
    with embedded("products", "maximum") as topics:
        items = [(label, 1_000 - i) for i, label in enumerate(HOSTILE)]
        keys = HOSTILE[:3]
        topics.send(
            *(recent(tick, items, ticks=2, key=key) for tick in (1, 2) for key in keys)
        )
        answers = [{"query": "top_k_select:3", "value": HOSTILE}]
        topics.send(answer(2, histogram="maximum", answers=answers, since=1, error=2))
        with topics.served("products", "maximum") as dashboard:
            page = window.open(dashboard.url)
            # every row is drawn
            page.set_viewport_size({"width": 1_400, "height": 1_200})
            window.counts("#key option", 3)
            window.counts(".pick", len(HOSTILE))
            shown = page.evaluate(
                """() => [...document.querySelectorAll(".pick")].map((e) => [e.title, e.children.length, e.dir])"""
            )
            assert shown == [[label, 0, "auto"] for label in HOSTILE]
            rows = page.locator("tr.item")
            boxes = [rows.nth(i).bounding_box() for i in range(len(HOSTILE))]
            # No label reaches into another row.
            assert len({round(box["height"]) for box in boxes if box}) == 1
            counts = page.locator("tr.item td.count")
            assert counts.all_inner_texts() == [text(count) for _, count in items]
            for index in (0, 4, 9):
                page.locator(".pick").nth(index).click()
                window.shows(
                    f'document.querySelector("#item-name").textContent.length === {len(HOSTILE[index])}'
                )
                assert page.text_content("#item-name") == HOSTILE[index]
                page.reload()
                page.wait_for_selector("tr.item")
                assert page.text_content("#item-name") == HOSTILE[index]
            for key in HOSTILE[:3]:
                page.select_option("#key", key)
                window.shows(
                    f'new URLSearchParams(location.search).get("key").length === {len(key)}'
                )
            page.select_option("#histogram", "maximum")
            page.wait_for_selector(".answer li")
            assert page.locator(".answer li").count() == len(HOSTILE)
            assert page.locator("main img, main script, main b").count() == 0
            assert page.title().endswith("orders \u2013 Quietcount")
            assert "maximum" in page.title()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_thousand_items_and_fifty_keys_stay_smooth(
    window: Window, show: Show
) -> None:
    keys = [f"shop {i:02}" for i in range(50)]

    def items(tick: int) -> list[tuple[str, int]]:
        found = [
            (f"product {i:04}", 20_000 * tick // (i + 3) + (i * 7919 * tick) % 97)
            for i in range(1_000)
        ]
        return sorted(found, key=lambda item: (-item[1], item[0]))

    ticks = (1, 2, 3)
    topics, url = show(
        *(recent(t, items(t), ticks=3, key=key) for t in ticks for key in keys)
    )
    page = window.open(f"{url}?histogram=products&key=shop 07")
    window.counts("#key option", 50)
    window.reads("#under", r"^\u25be 9\d\d more below$")
    page.evaluate(COUNT_NODES)
    most = 0
    for step in range(1, 11):
        tick = 3 + step
        topics.send(recent(tick, items(tick), ticks=3, key="shop 07"))
        page.evaluate(f"document.querySelector('#scroller').scrollTop = {step * 3_000}")
        window.reads("#board-title", f"tick {tick}$")
        most = max(most, page.locator("tr.item").count())
    assert most < 60
    assert page.evaluate("document.querySelectorAll('*').length") < 2_000
    page.evaluate("document.querySelector('#scroller').scrollTop = 1e9")
    window.shows(
        '[...document.querySelectorAll("tr.item .rank")].some((e) => e.textContent === "1000")'
    )
    last = items(13)[-1]
    assert window.rows()[-1] == ("1000", last[0], text(last[1]))
    window.reads("#under", "^$")
    page.locator("tr.item .pick").last.press("Home")
    window.reads("tr.item .rank", "^1$")
    page.fill("#find", "0999")
    window.counts("tr.item", 1)
    for key in keys[:10]:
        page.select_option("#key", key)
        window.reads("#board-title", f"^products of {key}")
    # Measured: 14,000. The rows of all items, drawn anew for each of these twenty ticks and keys, would be 160,000 and more.
    assert 1_000 < page.evaluate("window.made") < 60_000


def test_of_a_very_large_histogram_the_largest_are_sent_and_any_can_be_followed(
    window: Window,
) -> None:
    whole = [(f"product {i:05}", 90_000 - i) for i in range(30_000)]
    with embedded("products") as topics:
        for page_number, start in enumerate(range(0, 30_000, 10_000), 1):
            items = whole[start : start + 10_000]
            topics.send(recent(1, items, ticks=2, page=page_number, pages=3))
        with topics.served("products") as dashboard:
            page = window.open(
                f"{dashboard.url}?histogram=products&key=s1&item=product 25000"
            )
            assert "the 1,000 largest of 30,000 items shown" in page.inner_text(
                "#shown"
            )
            window.reads("#reading", "65,000")
            later = [(label, count + 7) for label, count in whole[:9_000]]
            topics.send(recent(2, [*later, ("product 25000", 3)], ticks=2))
            window.reads("#reading", ": at most 38$")
