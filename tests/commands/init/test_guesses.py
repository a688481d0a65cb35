"""Guesses for topics of known shapes, and look-alikes that must not be guessed."""

import random
import re
import tomllib
from collections.abc import Iterable
from decimal import Decimal

import pytest

from tests.commands.init import topics
from tests.commands.init.topics import (
    NOW_MS,
    Answers,
    Event,
    comments,
    draft_of,
    events,
    iso,
    sample_of,
    written,
)
from workers.commands.init.draft import Draft
from workers.commands.init.fields import Form, survey
from workers.commands.init.formats import CannotGuess
from workers.commands.init.items import Range, range_between, range_of
from workers.commands.init.tick_choice import choose_tick, config_of
from workers.commands.init.times import grace_of
from workers.commands.init.writing import histogram_name, worker_name
from workers.mechanisms.registry import build
from workers.mechanisms.running.sliding import Sliding


def of(records: list[Event], answers: Answers | None = None) -> Draft:
    return draft_of(sample_of((None, record) for record in records), answers)


def pages(times: Iterable[object], number: int = 5) -> list[Event]:
    return [{"page": f"p{i % number}", "ts": time} for i, time in enumerate(times)]


def said(draft: Draft) -> dict[str, str]:
    items = draft.items
    time = draft.time
    where = draft.where
    found = {
        "items": items.field.path,
        "count": items.count and items.count.path,
        "key": draft.key and draft.key.setting,
        "timestamp": time and f"{time.field.path} {time.unit}",
        "where": where and f"{where.field.path} {' '.join(where.values)}",
        "range": items.range,
        "empty": draft.empty or None,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


GUESSED = {
    "flights": "items: dest, key: origin, timestamp: departed iso",
    "orders": "items: order.lines[].sku, count: order.lines[].qty, key: order.shop, "
    "timestamp: created s, where: type purchase",
    "web-log": "items: path, timestamp: ts ms",
    "sensors": "items: value, key: type, timestamp: at us, range: { from = 0, to = 70, count = 14 }",
    "users": "items: tags, timestamp: context.when iso",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GUESSED)
def test_settings_guessed_for_typical_topics(name: str) -> None:
    draft = draft_of(sample_of(events(name, 2_000)), {"name_keys": "public"})
    guesses = (f"{setting}: {value}" for setting, value in said(draft).items())
    assert ", ".join(guesses) == GUESSED[name]
    assert draft.accepted + draft.skipped == 2_000


@pytest.mark.slow
def test_users_are_found_by_field_name_and_record_placement() -> None:
    """A session that is the record key is placed by it; an address that is not needs `rekey`."""
    draft = draft_of(sample_of(events("users", 2_000)), {"protect_users": True})
    assert draft.user is not None
    assert (draft.user.setting, draft.user.partitioner) == ("session", "murmur2")
    text, draft = written(sample_of(events("web-log", 2_000)), {"protect_users": True})
    assert [(user.setting, user.partitioner) for user in draft.users] == [("ip", None)]
    assert draft.user is draft.users[0]
    assert "rekey = true" in text and "partitioner" not in text
    with pytest.raises(CannotGuess, match="--users: no field"):
        draft_of(sample_of(events("flights", 2_000)), {"protect_users": True})


def test_an_object_of_counts_is_one_field_and_its_names_are_not_paths() -> None:
    rng = random.Random(1)
    baskets = [
        [(rng.randrange(9), rng.randrange(1, 4)) for _ in range(3)] for _ in range(200)
    ]
    records = [
        {"basket": {f"zqv{name}": n for name, n in basket}} for basket in baskets
    ]
    [field] = survey(records)
    assert (str(field.path), field.form, field.distinct) == ("basket", Form.MAP, 9)
    text, draft = written(sample_of((None, record) for record in records))
    assert said(draft) == {"items": "basket"}
    assert "zqv" not in text


def test_names_that_vary_like_data_are_not_walked() -> None:
    records = [
        {"page": f"p{i % 5}", "by_id": {f"zqv{i}": {"x": "a"}}} for i in range(200)
    ]
    assert [str(field.path) for field in survey(records)] == ["page", "by_id"]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([iso(NOW_MS - i * 1000) for i in range(60)], "iso"),
        ([NOW_MS // 1000 - i for i in range(60)], "s"),
        ([NOW_MS / 1000 - i / 8 for i in range(60)], "s"),
        ([NOW_MS - i for i in range(60)], "ms"),
        ([(NOW_MS - i) * 1000 for i in range(60)], "us"),
        ([(NOW_MS - i) * 1_000_000 for i in range(60)], "ns"),
        ([str((NOW_MS - i) * 1000) for i in range(60)], "us"),
        ([str(NOW_MS - i) for i in range(60)], "ms"),
        ([f"{(NOW_MS - i) / 1000:.3f}" for i in range(60)], "s"),
        (
            [iso(NOW_MS - i * 1000)[:19].replace("T", " ") + "+00" for i in range(60)],
            "iso",
        ),
        ([NOW_MS + 400_000 + i for i in range(60)], None),
        ([iso(NOW_MS)[:10]] * 60, None),
        ([f"{i} o'clock" for i in range(60)], None),
    ],
)
def test_the_unit_of_a_time_follows_from_its_size(
    values: list[object], unit: str | None
) -> None:
    assert said(of(pages(values))).get("timestamp") == (
        None if unit is None else f"ts {unit}"
    )


def test_a_time_as_text_is_written_with_what_it_is() -> None:
    """BigQuery and the JSON of protobuf write 64-bit numbers as texts."""
    draft = of(pages([str((NOW_MS - i) * 1000) for i in range(60)]))
    assert draft.time is not None
    assert draft.time.reason.startswith(
        "a number, written as text, that is a time between"
    )


def test_half_a_surrogate_pair_is_no_label() -> None:
    """The worker rejects such labels, and no settings file can hold one."""
    [field] = survey([{"page": "a \ud83d"}, {"page": "b"}])
    assert list(field.values) == ["b"]


def test_an_expiry_time_is_not_the_event_time() -> None:
    expiries = enumerate(pages(range(NOW_MS - 10**7, NOW_MS - 10**7 + 60)))
    draft = of([page | {"expires_at": NOW_MS - 10**6 + i} for i, page in expiries])
    assert said(draft)["timestamp"] == "ts ms"


def test_a_number_that_only_looks_like_a_time_is_not_one() -> None:
    rng = random.Random(1)
    numbers = [rng.randrange(10**9, 17 * 10**8) for _ in range(100)]
    draft = of([{"page": f"p{i % 5}", "customer": n} for i, n in enumerate(numbers)])
    assert "timestamp" not in said(draft)


def test_ids_prose_and_serial_numbers_are_not_items() -> None:
    serial: list[Event] = [{"id": f"{i:032x}", "seq": i} for i in range(200)]
    prose = [f"{'word ' * 30}{i}" for i in range(9)]
    other = (
        {"user": f"u{i % 7}", "text": prose[i % 9], "kind": f"k{i % 3}"}
        for i in range(200)
    )
    assert (
        said(of([a | b for a, b in zip(serial, other, strict=True)]))["items"] == "kind"
    )
    with pytest.raises(
        CannotGuess, match="no field of the sampled records can be counted"
    ):
        of(serial)


def test_events_without_items_count_if_no_condition_separates_them() -> None:
    records: list[Event] = [
        {"tags": ["a", "b"][: i % 3]} if i % 4 else {} for i in range(200)
    ]
    draft = of(records)
    assert said(draft) == {"items": "tags", "empty": "0.25"}
    assert draft.accepted == 200


def messy(number: int) -> list[Event]:
    """Return events with 15 % nulls, mixed types, accents, and some times of 1970."""
    rng = random.Random(3)
    events = []
    for i in range(number):
        when = (
            0 if rng.random() < 0.03 else NOW_MS - 3_600_000 + i * 3_600_000 // number
        )
        event: Event = {"when": when, "país": rng.choice(["perú", "chile"])}
        dish = f"dish-{int(rng.triangular(0, 25, 0))}"
        event["dish"] = rng.randrange(9) if rng.random() < 0.1 else dish
        event["café"] = None if rng.random() < 0.15 else f"ñ{rng.randrange(25)}"
        event["price"] = "n/a" if rng.random() < 0.03 else round(rng.uniform(0, 9), 2)
        if rng.random() < 0.05:
            del event["dish"]
        events.append(event)
    return events


def test_messy_events_give_settings_that_say_what_is_rejected() -> None:
    """Times of 1970 are rejected, and counted as that; a field in 95 % is offered."""
    records = messy(1_000)
    text, draft = written(
        sample_of((None, record) for record in records), {"name_keys": "public"}
    )
    assert said(draft)["items"] == "dish" and said(draft)["timestamp"] == "when ms"
    assert {items.name for items in draft.other_items} >= {
        "café",
        "price (a number, in buckets)",
    }
    dated = sum(record["when"] > 0 for record in records)
    assert draft.accepted == dated < 1_000
    lacking = sum(record["when"] > 0 and "dish" not in record for record in records)
    assert draft.empty == pytest.approx(lacking / dated)
    assert (
        'missing = "empty"' in text
        and "lack the items, or have null there" in comments(text)
    )
    assert "; the others are rejected" in comments(text)
    # From event time: about a thousand in the hour, although the records came within a second.
    assert draft.rate == pytest.approx(1_000 / 3_600, rel=0.05)
    # The country's name says nothing here, so it is offered only.
    assert draft.key is None and 'or key = "país"' in text


def test_shares_of_kinds_are_of_the_values_there_are() -> None:
    fields = {str(field.path): field for field in survey(messy(1_000))}
    assert fields["café"].holds == "text" and 0.1 < fields["café"].nulls / 1_000 < 0.2
    assert re.fullmatch(
        r"text \([\d.]+ %\) or whole number \([\d.]+ %\)", fields["dish"].holds
    )
    assert fields["price"].numeric and not fields["price"].labels


def test_accents_do_not_break_the_name_of_a_histogram() -> None:
    assert (
        histogram_name(of([{"artículo": f"ñ{i % 5}"} for i in range(60)])) == "articulo"
    )
    assert histogram_name(of([{"品": f"茶{i % 5}"} for i in range(60)])) == "items"


@pytest.mark.slow
def test_stream_keys_are_named_only_with_permission() -> None:
    sample = sample_of(events("flights", 600))
    for keys, lines in {
        "none": ['key = "$all"'],
        "public": ['key = "origin"', 'keys = "public"'],
        "declare": ['key = "origin"', 'keys = ["EWR", "JFK", "LGA"]'],
    }.items():
        text, _ = written(sample, {"name_keys": keys})
        settings = [line.partition("#")[0].rstrip() for line in text.splitlines()]
        assert [
            line for line in settings if line.startswith(("key ", "keys "))
        ] == lines


def test_the_record_key_is_a_stream_key_where_no_field_holds_it() -> None:
    sample = sample_of(
        (f"shop{i % 3}", {"page": f"p{i % 5}", "n": 1}) for i in range(300)
    )
    assert said(draft_of(sample, {"name_keys": "public"}))["key"] == "$key"


@pytest.mark.parametrize("quote", ["", '"'])
def test_quotes_that_are_part_of_record_keys_are_told(quote: str) -> None:
    keys = (f"{quote}shop{i % 3}{quote}" for i in range(300))
    sample = sample_of(
        (key, {"page": f"p{i % 5}", "n": 1}) for i, key in enumerate(keys)
    )
    for answers in ({"name_keys": "public"}, {"name_keys": "none"}):
        text, _ = written(sample, answers)
        assert ("quotes are part of each key" in comments(text)) == bool(quote)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([18.2, 21.0, 23.9], "{ from = 18, to = 24, count = 12 }"),
        ([0.0, 99.0], "{ from = 0, to = 100, count = 20 }"),
        ([5.0, 5.0], "{ from = 2.5, to = 8, count = 11 }"),
        ([-0.004, 0.001], "{ from = -0.004, to = 0.0015, count = 11 }"),
        (
            [1.0] * 50 + [2.0] * 40 + [5000.0] * 10,
            '{ from = 1, to = 10000, count = 12, scale = "log" }',
        ),
        ([1e300, 2e300], None),
        ([float("inf"), 1.0], None),
    ],
)
def test_ranges_are_round_and_hold_the_numbers(
    numbers: list[float], found: str | None
) -> None:
    made = range_of(numbers)
    assert (None if made is None else str(made)) == found
    if made is not None:
        assert made.edges[0] <= min(numbers) and max(numbers) < made.edges[-1]


def test_a_range_that_was_given_is_kept() -> None:
    assert range_between(0, 7.5) == Range(Decimal(0), Decimal("7.5"), 20)
    assert range_between(3, 3) is None
    sample = sample_of((None, {"value": float(i % 10)}) for i in range(100))
    text, draft = written(sample, {"range_": range_between(-5, 5)})
    assert draft.items.range is not None and draft.items.range.edges[0] == -5
    assert "buckets = { from = -5, to = 5, count = 20 }" in text
    assert "It holds no value of any event" in topics.comments(text)


def test_bounds_hold_for_nearly_all_events() -> None:
    """1 of 200 orders has 50 lines; a bound for it would add noise to all counts."""
    numbers = (50 if i == 7 else 1 + i % 3 for i in range(200))
    draft = of(
        [{"lines": [{"sku": f"p{j}", "qty": 2} for j in range(n)]} for n in numbers]
    )
    assert (draft.max_items, draft.max_count) == (3, 2)
    assert draft.items_within == 199 / 200


@pytest.mark.parametrize(
    ("a_second", "tick_ms"),
    [(2_000, 10_000), (100, 60_000), (0.5, 3_600_000), (0.0001, 86_400_000)],
)
def test_a_tick_counts_well_above_its_noise(a_second: float, tick_ms: int) -> None:
    ages = (10**3 + int((2_000 - i) / a_second * 1000) for i in range(2_000))
    draft = of(pages((NOW_MS - age for age in ages), 20))
    choice = choose_tick(draft, NOW_MS)
    assert choice.tick_ms == tick_ms
    assert choice.tick_ms * choice.horizon % 86_400_000 == 0
    if a_second > 0.001:
        sd = build(config_of(draft, choice.tick_ms, choice.horizon)).sd(1)
        assert a_second / 20 * tick_ms / 1000 > 2 * sd


@pytest.mark.parametrize(
    ("gap_ms", "horizon"), [(500, "1d"), (20_000, "7d"), (86_400, "28d")]
)
def test_the_horizon_is_written_as_a_length_of_time(gap_ms: int, horizon: str) -> None:
    records = pages((NOW_MS - i * gap_ms for i in range(1, 1_001)), 20)
    text, _ = written(sample_of((None, record) for record in records))
    assert tomllib.loads(text)["histogram"][0]["horizon"] == horizon


def test_old_events_get_ticks_that_do_not_flood_the_output() -> None:
    start = NOW_MS - 5 * 365 * 86_400_000
    draft = of(pages(start + i for i in range(2_000)))
    assert (NOW_MS - start) / choose_tick(draft, NOW_MS).tick_ms <= 100_000


def test_the_grace_admits_late_events() -> None:
    late = {i: NOW_MS + 1000 * i - (4_000 if i % 10 == 0 else 0) for i in range(100)}
    assert grace_of(late, [0] * 100)[0] == "5s"
    assert grace_of({i: NOW_MS + i for i in range(100)}, [0] * 100)[0] == "0s"


def test_the_worker_name_avoids_existing_topics() -> None:
    assert worker_name("orders", "sku", ["orders"]) == "orders"
    assert worker_name("orders", "sku", ["orders", "orders_rejects"]) == "orders-2"
    assert worker_name("a.sku", "sku", ["a.sku"]) == "a.sku"
    assert worker_name("_x", "sku", ["_x", "x.sku"]) == "x-2"


def test_windows_without_epochs_are_offered_where_events_are_protected() -> None:
    """Epochs stay the default; the offer can be pasted in place of the horizon as it is."""
    text, draft = written(sample_of(events("orders", 500)))
    offered = re.search(
        r'or, for a board of now that never begins at zero: horizon = "never" and windows = (\[[^\]]*\])',
        comments(text),
    )
    assert offered is not None
    assert tomllib.loads(text)["histogram"][0]["horizon"] != "never"
    pasted = re.sub(
        r'^horizon = "[^"]*"',
        f'horizon = "never"\nwindows = {offered[1]}',
        text,
        flags=re.MULTILINE,
    )
    [config] = topics.loaded(pasted).histograms
    assert config.without_epochs
    mechanism = build(config)
    assert isinstance(mechanism, Sliding)
    least = config.window_ticks[0]
    assert len(config.windows) == 1 or least >= 12
    assert draft.user is None


def test_unique_users_are_offered_where_users_are_protected() -> None:
    sample = sample_of(events("web-log", 2_000))
    text, draft = written(sample, {"protect_users": True})
    assert draft.user is not None
    offered = re.search(
        r'or, for how many different users each item had .*: horizon = "never", windows = (\[[^\]]*\]), '
        r'user_period = "([^"]*)" and unique_users = true( and no max_count)?;',
        comments(text),
    )
    assert offered is not None
    pasted = re.sub(
        r'^horizon = "[^"]*"',
        f'horizon = "never"\nwindows = {offered[1]}\nuser_period = "{offered[2]}"\nunique_users = true',
        text,
        flags=re.MULTILINE,
    )
    if offered[3]:
        pasted = re.sub("^max_count = .*$", "", pasted, flags=re.MULTILINE)
    [config] = topics.loaded(pasted).histograms
    assert config.unique_users
    assert isinstance(build(config, "user"), Sliding)
