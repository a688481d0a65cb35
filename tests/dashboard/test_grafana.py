"""The Grafana board of the histograms asks the dashboard's API for what it has, as Infinity reads it.

Grafana itself is not here: each query is filled in and sent to a dashboard, and its answer is
searched as the plugin's backend parser does (GJSON paths; CSV by the names of its columns).
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests import ROOT
from tests.agents.monitor.test_deploy import assert_apart
from tests.dashboard.feeding import (
    RECENT_MS,
    Moment,
    embedded,
    reads,
    recent,
    sliding,
)

BOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy" / "grafana" / "histograms.json").read_text()
)
DATA_SOURCES = ROOT / "deploy" / "compose" / "grafana" / "datasource.yaml"
PLUGIN = "yesoreyeram-infinity-datasource"
#: Fields of a query, and of a column, in the plugin's src/types/query.types.ts.
FIELDS = {
    "type",
    "source",
    "parser",
    "format",
    "url",
    "url_options",
    "root_selector",
    "columns",
}
COLUMN = {"selector", "text", "type"}
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float, type(None)),
    "timestamp_epoch": int,
}
#: Texts that only some histograms have: whether a count is of different users.
ABSENT = {"counts"}
KEY = "s1/ä&b"
LABEL = "tea & 50% +x"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded("products", "products.1h") as topics:
        items = [(LABEL, 2_086), ("cup", 1_462)]
        median = {"q": 0.5, "bucket": "<5", "value": None, "low": None, "high": 4.5}
        more = {
            "sums": [[3_129.5, 1.5, 1.25, 1.75], [9.5, None, 0.0, 9.0]],
            "sum": {"from": 0, "to": 9, "step": 0.5, "sd": 2.0},
            "all_items": {"count": 4_000, "sd": 9.0},
            "quantiles": [median],
        }
        topics.send(
            *(
                recent(i, items, ticks=5, key=key, **more)
                for i in range(1, 6)
                for key in (KEY, "s2")
            )
        )
        now = Moment.ms // RECENT_MS * RECENT_MS
        topics.send(
            *(
                sliding("1h", now - i * RECENT_MS, items, tick_ms=RECENT_MS, key=KEY)
                for i in range(4, -1, -1)
            )
        )
        with topics.served("products", "products.1h") as running:
            reads(running)
            yield running.url.rstrip("/")


def filled(text: str, histogram: str = "products") -> str:
    """Return a query's text as Grafana fills it in."""
    values = {
        "histogram": histogram,
        "key": KEY,
        "item": LABEL,
        "__interval_ms": "60000",
    }
    values |= {"__from": str(Moment.ms - 86_400_000), "__to": str(Moment.ms)}

    def value(match: re.Match[str]) -> str:
        found = values[match[1]]
        return quote(found, safe="") if match[2] else found

    return re.sub(r"\$\{(\w+)(:percentencode)?\}", value, text)


def selected(document: Any, path: str) -> Any:
    """Return what a GJSON path names, of names and `#(name=="value")`."""
    for step in re.findall(r'#\(\w+=="[^"]*"\)|[^.]+', path):
        if where := re.fullmatch(r'#\((\w+)=="([^"]*)"\)', step):
            [document] = [one for one in document if one[where[1]] == where[2]]
        else:
            document = document[int(step) if isinstance(document, list) else step]
    return document


def rows(url: str, query: dict[str, Any], histogram: str = "products") -> list[Any]:
    """Return the rows that the plugin makes of the answer."""
    with urlopen(url + filled(query["url"], histogram)) as answer:
        text = answer.read().decode()
    names = [one["selector"] for one in query["columns"]]
    if query["type"] == "csv":
        found = list(csv.DictReader(io.StringIO(text)))
        texts = {one["selector"] for one in query["columns"] if one["type"] == "string"}
        return [
            {n: row[n] if n in texts else json.loads(row[n] or "null") for n in names}
            for row in found
        ]
    root = selected(json.loads(text), filled(query["root_selector"], histogram))
    many = root if isinstance(root, list) else [root]
    return [{n: selected(one, n) for n in names} if names else one for one in many]


def queries() -> dict[str, dict[str, Any]]:
    found = {}
    for one in BOARD["templating"]["list"][1:]:
        assert (
            one["query"]["queryType"] == "infinity"
            and one["datasource"]["type"] == PLUGIN
        )
        found[one["name"]] = one["query"]["infinityQuery"]
    for panel in BOARD["panels"]:
        [found[panel["title"]]] = panel["targets"]
    return found


@pytest.mark.parametrize("name", queries())
def test_the_api_has_what_each_query_asks_for(url: str, name: str) -> None:
    query = queries()[name]
    assert query.keys() - {"refId", "datasource", "computed_columns"} == FIELDS
    assert query["parser"] == "backend" and query["source"] == "url"
    found = rows(url, query)
    assert found
    for column in query["columns"]:
        assert column.keys() == COLUMN
        for row in found:
            value = row[column["selector"]]
            is_absent = value is None and column["selector"] in ABSENT
            assert is_absent or isinstance(value, TYPES[column["type"]]), column


def test_the_board_shows_the_newest_counts_and_an_item_over_time(url: str) -> None:
    asked = queries()
    listed = [{"histogram": name} for name in ("products", "products.1h")]
    assert rows(url, asked["histogram"]) == listed
    assert rows(url, asked["key"]) == sorted([KEY, "s2"])
    assert rows(url, asked["item"]) == [{"item": LABEL}, {"item": "cup"}]
    board = rows(url, asked["Largest items at the end of the range"])
    assert board[0] == {"item": LABEL, "count": 2_086, "sd": 17.25}
    assert len(rows(url, asked["Item"])) == 5
    mean = rows(url, asked["Mean of the item"])[0]
    assert list(mean.values())[1:] == [1.5, 1.25, 1.75]
    assert list(rows(url, asked["All items, and others"])[0].values())[1:] == [
        4_000,
        3_548,
    ]
    assert list(rows(url, asked["First quantile"])[0].values())[1:] == [None, None, 4.5]


def test_a_window_without_epochs_is_a_histogram_of_the_board(url: str) -> None:
    asked = queries()
    hour = "products.1h"
    assert rows(url, asked["key"], hour) == [KEY]
    assert rows(url, asked["item"], hour) == [{"item": LABEL}, {"item": "cup"}]
    board = rows(url, asked["Largest items at the end of the range"], hour)
    assert board[0] == {"item": LABEL, "count": 2_086, "sd": 17.25}
    assert len(rows(url, asked["Item"], hour)) == 5
    assert rows(url, asked["What is promised"], hour)


def test_the_board_is_whole_and_has_its_data_source() -> None:
    assert_apart(BOARD["panels"])
    for panel in BOARD["panels"]:
        [query] = panel["targets"]
        assert panel["datasource"] == query["datasource"]
        assert panel["datasource"] == {"type": PLUGIN, "uid": "${datasource}"}
        shown = {
            column["text"]
            for column in [*query["columns"], *query.get("computed_columns", [])]
        }
        for step in panel["transformations"]:
            assert set(step["options"].get("include", {}).get("names", [])) <= shown
    [source] = [
        one
        for one in yaml.safe_load(DATA_SOURCES.read_text())["datasources"]
        if one["type"] == PLUGIN
    ]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://dashboard:8080" and "dashboard" in compose
    plugins = compose["grafana"]["environment"]["GF_PLUGINS_PREINSTALL_SYNC"]
    assert re.fullmatch(rf"{PLUGIN}@\d+\.\d+\.\d+", plugins)
    mounted = {one["target"] for one in compose["grafana"]["configs"]}
    assert "/var/lib/grafana-dashboards/histograms.json" in mounted


def unknown(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield the fields that Grafana's types do not know: they are gone after decoding."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(kept, dict) or name not in kept:
                yield f"{place}.{name}"
            else:
                yield from unknown(value, kept[name], f"{place}.{name}")
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{place}[{number}]")
    elif given != kept:
        yield place


def test_the_board_has_only_what_grafana_knows() -> None:
    """By Grafana's own types of boards and panels; a planted misspelling is found."""
    plugins.register_default_plugins()

    def decoded(board: dict[str, Any]) -> list[str]:
        text = JSONEncoder(sort_keys=True).encode(Dashboard.from_json(board))
        return list(unknown(board, json.loads(text)))

    assert decoded(BOARD) == []
    board = json.loads(json.dumps(BOARD))
    board["panels"][0]["gridPosition"] = board["panels"][0]["gridPos"]
    assert decoded(board) == [".panels[0].gridPosition"]
