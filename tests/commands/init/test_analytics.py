"""Topics of analytics tools: nobody is offered as a label, and what is worth counting still is."""

import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.commands.init.analytics import PEOPLE, SHAPES, topic
from tests.commands.init.topics import (
    NOW_MS,
    Keyed,
    comments,
    draft_of,
    guesses_of,
    sample_of,
    text_of,
    written,
)
from workers.commands.init.dialogue import _show_fields
from workers.commands.init.draft import Draft, SampleGuesses
from workers.commands.init.formats import CannotGuess

Value = Callable[[random.Random, int], object]

#: Fields worth counting, and the user that a file for users names.
USEFUL = {
    "ga4": (
        {"event_name", "geo.country", "geo.city", "device.category"},
        "user_pseudo_id",
    ),
    "segment": (
        {"properties.product", "context.page.path", "context.page.url", "event"},
        "userId",
    ),
    "snowplow": (
        {"page_url", "page_urlpath", "event", "geo_country", "br_family"},
        "user_id",
    ),
    "mixpanel": (
        {
            "properties.song",
            'properties."$screen_name"',
            "event",
            "properties.mp_country_code",
        },
        'properties."$user_id"',
    ),
    "github": ({"repo.name", "repo.id", "type"}, "actor.id"),
    "shopify": (
        {
            "line_items[].product_id",
            "line_items[].title",
            "shipping_address.city",
            "currency",
        },
        "customer.id",
    ),
    "debezium": (
        {"payload.after.product", "payload.after.status"},
        "payload.after.customer_id",
    ),
}
#: Fields that identify somebody or one event, in these topics.
PERSONAL = re.compile(
    r"event_params\[\]\.value|user_id|pseudo|touch|advertising|vendor|anonymous|userId|traits|\bip\b|"
    r"device\.id|messageId|event_id|ipaddress|fingerprint|userid|sessionid|distinct_id|device_id|"
    r"insert_id|actor|email|phone|browser_ip|customer|address1|address\.name|order_number|^id$"
)
#: Values of people in these topics.
VALUES = re.compile(
    r"a\.example|dev-[0-9]|member-|\bu-[0-9]|First[0-9]|Last[0-9]|10\.[0-9]\.|\+49"
)


def offered(draft: Draft) -> set[str]:
    """Return the fields offered as items or stream keys."""
    items = {str(items.field.path) for items in (draft.items, *draft.other_items)}
    keys = {key.setting for key in draft.other_keys}
    return items | keys | ({draft.key.setting} if draft.key is not None else set())


@cache
def guesses(name: str, people: int) -> SampleGuesses:
    return guesses_of(sample_of(topic(SHAPES[name], people)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("people", [PEOPLE, 150])
def test_only_fields_that_identify_nobody_are_offered(name: str, people: int) -> None:
    """Also where nearly every user has one event, so that few repetitions tell."""
    useful, user = USEFUL[name]
    draft = guesses(name, people).draft(protect_users=True, name_keys="declare")
    text = text_of(draft)
    found = offered(draft)
    assert {path for path in found if PERSONAL.search(path)} == set()
    assert found >= useful
    assert draft.user is not None and draft.user.setting == user
    assert not VALUES.search(text)


def views(
    more: dict[str, Value], people: int = 120, events: int = 1_200
) -> list[Keyed]:
    rng = random.Random(5)
    found: list[Keyed] = []
    for i in range(events):
        person = rng.randrange(people)
        event: dict[str, Any] = {"user_id": f"u{person}", "ts": NOW_MS - 10**6 + i}
        event |= {name: value(rng, person) for name, value in more.items()}
        found.append((None, event))
    return found


def plan(rng: random.Random, person: int) -> str:
    return f"plan{person % 4}"


#: Fields whose names say nothing, with values that tell who somebody is.
TELLING: dict[str, Value] = {
    "one to one": lambda _, person: f"x{person * 31}",
    "a number one to one": lambda _, person: person * 31 + 7,
    "one to one, but for one event in twenty": lambda rng, person: (
        f"x{rng.randrange(120) if rng.random() < 0.05 else person}"
    ),
    "a fraction one to one": lambda _, person: person * 0.25 + 0.125,
    "two values of each user": lambda rng, person: (
        f"https://a.example/{person}/{rng.randrange(2)}"
    ),
    "a link with the user": lambda rng, person: (
        f"https://a.example/u{person}/{rng.randrange(9)}"
    ),
    "a page, of the user in one view in six": lambda rng, person: (
        f"/u{person}" if rng.random() < 1 / 6 else f"/page/{rng.randrange(30)}"
    ),
    "a list with the user": lambda rng, person: [f"member:u{person}"],
    "address": lambda _, person: f"Someone <s{person}@a.example>",
    "phone number": lambda _, person: f"+49 151 {person:07d}",
    "hardware address": lambda _, person: f"aa-bb-cc-dd-ee-{person:02x}"[:17],
}


@pytest.mark.parametrize("telling", TELLING)
def test_values_tell_who_somebody_is_where_the_name_does_not(telling: str) -> None:
    draft = draft_of(sample_of(views({"thing": TELLING[telling], "tier": plan})))
    assert offered(draft) == {"tier"}
    assert "thing" in {str(field.path) for field in draft.personal}


@pytest.mark.parametrize("people", [120, 1_000])
def test_as_many_products_as_users_are_offered_where_they_do_not_go_together(
    people: int,
) -> None:
    more: dict[str, Value] = {
        "product": lambda rng, _: f"p{rng.randrange(120)}",
        "page": lambda rng, _: f"/page/{rng.randrange(120)}",
        "store": lambda rng, person: f"s{person % 40}",
        "city": lambda rng, person: f"c{person % 7}",
        "language": lambda rng, _: "en" if rng.random() < 0.95 else "de",
    }
    found = offered(draft_of(sample_of(views(more, people))))
    assert found >= {"product", "page", "store", "city", "language"}


def test_record_keys_that_go_with_a_user_are_no_stream_keys() -> None:
    keyed = views({"tier": plan}, people=20)
    named = [(f"k{event['user_id']}", event) for _, event in keyed]
    assert "$key" not in offered(draft_of(sample_of(named)))


def test_a_topic_of_people_alone_is_refused_with_their_fields() -> None:
    only = views({"avatar": lambda _, person: f"https://a.example/{person}"})
    for _, event in only:
        del event["ts"]
    with pytest.raises(
        CannotGuess, match=r"identify people or single events \(user_id, avatar\)"
    ):
        draft_of(sample_of(only))


def test_the_file_names_the_fields_that_are_never_offered_and_why() -> None:
    text, _ = written(sample_of(views({"thing": TELLING["one to one"], "tier": plan})))
    assert (
        "user_id (by its name), thing (it goes with user_id, nearly one to one)"
        in comments(text)
    )


@pytest.mark.slow
def test_the_terminal_shows_no_values_of_people(tmp_path: Path) -> None:
    for name in SHAPES:
        console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
        _show_fields(console, guesses(name, 150), {})
        shown = console.export_text()
        assert "not shown: identifies" in shown, name
        assert not VALUES.search(shown), name
