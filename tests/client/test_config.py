"""What the dashboard takes from a settings file, and that it needs no more."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workers.client.config import HistogramTopic, load_reader_settings, read_token
from workers.dashboard.store.writing import connect
from workers.runtime.errors import SettingsError

LEAST = """
[worker]
name = "orders"
[kafka]
bootstrap = "localhost:9092"
[[histogram]]
name = "products"
"""


def load(directory: Path, text: str) -> object:
    (directory / "x.toml").write_text(text)
    return load_reader_settings(directory / "x.toml")


def refusal(directory: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(directory, text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_least_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(LEAST)
    settings = load_reader_settings(tmp_path / "x.toml")
    assert (settings.worker, settings.connection.bootstrap) == (
        "orders",
        "localhost:9092",
    )
    assert settings.histograms == (
        HistogramTopic(name="products", topic="orders.products"),
    )


def test_the_workers_own_file_serves_without_the_files_it_names(tmp_path: Path) -> None:
    text = LEAST.replace(
        '"orders"', '"orders"\nkey_file = "none.key"\ndata_dir = "none"'
    )
    text += 'mechanism = "known_base"\ndomain_file = "none.txt"\nhorizon = 64\ntopic = "shown"\nlater_setting = 3\n'
    text += 'label = "Latency"\nunit = "ms"\nsum = { field = "price", step = "none" }\n'
    text += '[events]\ntopic = "e"\nkey = "shop.branch"\n'
    (tmp_path / "x.toml").write_text(text)
    [found] = load_reader_settings(tmp_path / "x.toml").histograms
    assert replace(found, selection=None) == HistogramTopic(
        "products",
        "shown",
        64,
        label="Latency",
        unit="ms",
        sum_field="price",
        key_field="shop.branch",
    )


@pytest.mark.parametrize(
    ("events", "own", "field"),
    [
        ("", "", None),
        ('key = "$all"', "", None),
        ('key = "branch"', "", "branch"),
        ('key = "branch"', 'key = "shop.city"', "shop.city"),
        ("key = 3", "", None),
    ],
)
def test_readers_are_told_which_field_stream_keys_are(
    tmp_path: Path, events: str, own: str, field: str | None
) -> None:
    (tmp_path / "x.toml").write_text(f'{LEAST}{own}\n[events]\ntopic = "e"\n{events}\n')
    [found] = load_reader_settings(tmp_path / "x.toml").histograms
    assert found.key_field == field


def test_without_epochs_every_window_is_a_series_with_a_topic_of_its_own(
    tmp_path: Path,
) -> None:
    text = LEAST + 'tick = "2s"\nhorizon = "never"\nwindows = ["60s", "1h"]\n'
    text += 'unit = "ms"\nunique_users = true\n'
    (tmp_path / "x.toml").write_text(text)
    settings = load_reader_settings(tmp_path / "x.toml")
    about: Any = {
        "unit": "ms",
        "counts": "users",
        "window_of": "products",
    }
    assert settings.histograms == (
        HistogramTopic("products.1m", "orders.products.1m", window_ms=60_000, **about),
        HistogramTopic(
            "products.1h", "orders.products.1h", window_ms=3_600_000, **about
        ),
    )
    assert {one.settings_name for one in settings.histograms} == {"products"}
    assert settings.topics["orders.products.1h"] == "products.1h"


def test_histograms_that_count_the_same_are_known_where_the_events_are(
    tmp_path: Path,
) -> None:
    views = {"a": "", "b": 'items = "carts"\n', "c": "", "d": "where = { x = 1 }\n"}
    text = LEAST.partition("[[histogram]]")[0]
    text += "".join(f'[[histogram]]\nname = "{k}"\n{view}' for k, view in views.items())
    path = tmp_path / "x.toml"
    path.write_text(text)
    assert {one.selection for one in load_reader_settings(path).histograms} == {None}
    path.write_text(f'{text}[events]\ntopic = "e"\n')
    counted = [one.selection for one in load_reader_settings(path).histograms]
    assert [counted.index(one) for one in counted] == [0, 1, 0, 3]
    assert None not in counted


@pytest.mark.parametrize(
    ("windows", "part"),
    [
        ("", "windows is missing"),
        ("windows = []", "windows is missing"),
        ("windows = 60", "windows is missing"),
        ('windows = ["1 hour"]', 'windows holds "1 hour"'),
        ('windows = ["0s"]', 'windows holds "0s"'),
        ("windows = [true]", "windows holds true"),
        ('windows = ["1h", "60m"]', 'two histograms have the name "products.1h"'),
    ],
)
def test_windows_that_name_no_series_are_refused_in_one_line(
    tmp_path: Path, windows: str, part: str
) -> None:
    assert part in refusal(tmp_path, f'{LEAST}horizon = "never"\n{windows}\n')


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"orders"', '"or ders"', ["worker.name", '"or ders"', "letters"]),
        ('"localhost:9092"', '"localhost"', ["kafka.bootstrap", "host:port"]),
        ("bootstrap =", "boot =", ["kafka.bootstrap is missing"]),
        (
            'name = "products"',
            'name = "a"\nunit = ""',
            ["unit", '""', "1 to 40 characters"],
        ),
        ("[worker]", "[other]", ["[worker] is missing"]),
        ('"products"', '"Products"', ["histogram 1: name", '"Products"', "lower-case"]),
        ("[[histogram]]", "[histogram]", ["[[histogram]]"]),
        ('name = "products"', "", ["histogram 1: name is missing"]),
        (
            'name = "products"',
            'name = "a"\n[[histogram]]\nname = "a"',
            ["two histograms", '"a"'],
        ),
        (
            'name = "products"',
            'name = "a"\ntopic = "t/"',
            ["histogram 1: topic", "Kafka topic name"],
        ),
        ("[kafka]", "[kafka", ["not TOML"]),
        (
            "[kafka]",
            '[kafka]\nclient = { "group.id" = "x" }',
            ["kafka.client.group.id"],
        ),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(
    tmp_path: Path, old: str, new: str, parts: list[str]
) -> None:
    message = refusal(tmp_path, LEAST.replace(old, new))
    for part in ["x.toml", *parts]:
        assert part in message


def test_a_token_is_the_files_line_and_not_a_short_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert read_token(file) == "0123456789abcdef"
    for bad in ("short\n", "", "two words and more", "zürich-zürich-zürich"):
        file.write_text(bad)
        with pytest.raises(SettingsError, match="at least 16"):
            read_token(file)
    with pytest.raises(SettingsError, match="no such file"):
        read_token(tmp_path / "none")


@pytest.mark.slow
def test_the_store_is_the_file_that_is_named_or_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever characters it has, also as a relative path."""
    monkeypatch.chdir(tmp_path)
    names = [
        "a b",
        "a%20b",
        "a#b",
        "é",
        "a:b",
        "it's",
        'a"b',
        "[z]",
        "a*b",
        "~",
        "md:x",
        ":memory:x",
    ]
    for name in names:
        (tmp_path / "x.toml").write_text(
            f"{LEAST}[dashboard]\nstore = {json.dumps(name)}\n"
        )
        store = load_reader_settings(Path("x.toml")).history.store
        assert store is not None
        connect(store).close()
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "x.toml"])
    for name in ("a?b", "a\\b"):
        said = refusal(tmp_path, f"{LEAST}[dashboard]\nstore = {json.dumps(name)}\n")
        assert (
            "dashboard.store = " in said and "must have no ? and no backslash" in said
        )
    (tmp_path / "a?b").mkdir()
    assert "dashboard.store = " in refusal(
        tmp_path / "a?b", f'{LEAST}[dashboard]\nstore = "x"\n'
    )
