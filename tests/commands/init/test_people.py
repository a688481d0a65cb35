"""Topics with people in them: the user field, its meaning, and no person offered as a label."""

import random
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.commands.init.test_command import made, on_a_terminal, options
from tests.commands.init.topics import (
    NOW_MS,
    Keyed,
    comments,
    guesses_of,
    loaded,
    sample_of,
    text_of,
    written,
)
from tests.quietcount import Quietcount
from workers.commands.init.draft import SampleGuesses
from workers.commands.init.formats import CannotGuess
from workers.settings.settings import load

Event = dict[str, Any]
More = Callable[[random.Random, int], Event]


def topic(key: Callable[[Event], str | None], more: More) -> list[Keyed]:
    """Return page views with their record keys; without fields of `more`, they name no user."""
    rng = random.Random(1)
    pages = ["home", "search", "cart", "help"]
    begin = NOW_MS - 3_000_000
    views = ({"page": rng.choice(pages), "ts": begin + 1_000 * i} for i in range(1_500))
    events = (view | more(rng, i) for i, view in enumerate(views))
    return [(key(one), one) for one in events]


def person(rng: random.Random, i: int) -> Event:
    user = {"id": f"u{rng.randrange(150)}", "email": f"e{i % 150}@a.org"}
    return {"session_id": f"s{rng.randrange(400)}", "user": user}


def order(rng: random.Random, i: int) -> Event:
    order = {"id": f"o{i}", "customer": {"id": f"c{rng.randrange(200)}"}}
    return {"order": order, "acct": rng.randrange(300)}


def request(rng: random.Random, i: int) -> Event:
    address = f"10.0.{rng.randrange(8)}.{rng.randrange(8)}"
    return {
        "req": f"{rng.getrandbits(64):x}",
        "who": address,
        "deviceId": rng.randrange(90),
    }


def session(rng: random.Random, i: int) -> Event:
    return {"sess": f"s{rng.randrange(300)}"}


def no_user(rng: random.Random, i: int) -> Event:
    return {}


KEYED_BY_ORDER = topic(lambda e: e["order"]["id"], order)
KEYED_BY_CUSTOMER = topic(lambda e: e["order"]["customer"]["id"], order)
UNKNOWN_KEY = topic(lambda e: f"k{e['ts'] // 1_000 % 100}", no_user)
#: Records, the user's field, whether the records must be re-keyed, and what a user means.
TOPICS: dict[str, tuple[list[Keyed], str, bool, str]] = {
    "keyed by session": (
        topic(lambda e: e["session_id"], person),
        "user.id",
        True,
        "one person",
    ),
    "keyed by user": (
        topic(lambda e: e["user"]["id"], person),
        "user.id",
        False,
        "one person",
    ),
    "no key": (topic(lambda _: None, person), "user.id", True, "one person"),
    "keyed by order": (KEYED_BY_ORDER, "order.customer.id", True, "one person"),
    "keyed by customer": (KEYED_BY_CUSTOMER, "order.customer.id", False, "one person"),
    "devices": (topic(lambda _: None, request), "deviceId", True, "one device"),
    "only sessions": (
        topic(lambda e: e["sess"], session),
        "sess",
        False,
        "NOT of one person",
    ),
    "a key that is in no field": (
        UNKNOWN_KEY,
        "$key",
        False,
        "only if it names a person",
    ),
}


@cache
def guesses(name: str) -> SampleGuesses:
    return guesses_of(sample_of(TOPICS[name][0]))


#: Fields that identify somebody, or one event.
PERSONAL = re.compile(r"session_id|sess\b|user\.|order\.|acct|deviceId|\breq\b|\bwho\b")


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPICS)
def test_the_file_names_the_user_field_and_what_it_protects(name: str) -> None:
    keyed, user, rekey, means = TOPICS[name]
    draft = guesses(name).draft(protect_users=True)
    text = text_of(draft)
    found = loaded(text)
    assert (found.events.user, found.privacy.unit, found.privacy.rekey) == (
        user,
        "user",
        rekey,
    )
    assert ("partitioner" in tomllib.loads(text)["events"]) == (not rekey)
    assert draft.accepted == len(keyed)
    assert means in comments(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize("keys", ["none", "public"])
@pytest.mark.parametrize("users", [False, True])
def test_identifying_fields_are_never_labels_or_keys(
    name: str, keys: str, users: bool
) -> None:
    draft = guesses(name).draft(name_keys=keys, protect_users=users)
    text = text_of(draft)
    offered = [str(items.field.path) for items in (draft.items, *draft.other_items)]
    offered += [] if draft.key is None else [draft.key.setting]
    offered += [named.setting for named in draft.other_keys]
    assert not [path for path in offered if PERSONAL.search(path)]
    assert not [
        line
        for line in text.splitlines()
        if "or items:" in line and PERSONAL.search(line)
    ]


@pytest.mark.parametrize(
    "field",
    [
        {"friends": {"a": 1}},
        {"users": ["u1", "u2"]},
        {"people": [{"email": "x@a.org", "qty": 2}]},
        {"msisdn": 491_700_000},
        {"contact": "x@a.org"},
        {"seen_from": "10.1.2.3"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_people_in_lists_objects_and_numbers_are_not_items(field: Event) -> None:
    rng = random.Random(2)

    def varied(value: Any) -> Any:
        n = rng.randrange(8)
        if value == {"a": 1}:
            return {f"f{n}": 1, f"f{n + 1}": 1}
        if isinstance(value, dict):
            return {name: varied(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [varied(one) for one in value]
        if isinstance(value, int):
            return value + n
        return value.replace("x", f"x{n}").replace("3", str(n))

    records = [
        (None, {name: varied(value) for name, value in field.items()})
        for _ in range(300)
    ]
    with pytest.raises(CannotGuess, match="can be counted"):
        written(sample_of(records))


def test_a_key_naming_an_event_or_its_subject_is_not_a_user() -> None:
    for key in (lambda e: f"o{e['ts']}", lambda e: e["page"]):
        with pytest.raises(CannotGuess, match="--users: no field"):
            written(sample_of(topic(key, no_user)), {"protect_users": True})


def test_the_command_writes_and_asks_about_user_and_rekey(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    keyed, user, _, means = TOPICS["keyed by session"]
    name = made(bootstrap, keyed)
    quietcount(options(bootstrap, name, tmp_path / "x.toml", "--users"))
    found = load(tmp_path / "x.toml")
    assert (found.events.user, found.privacy.rekey) == (user, True)
    command = options(bootstrap, name, tmp_path / "y.toml")
    out, code = on_a_terminal(command, [("Protect all events of one user", "y")])
    assert code == 0, out
    shown = " ".join(out.split())
    protected = f"would protect all events of {means}"
    for said in (f"{user} may name a user", "privacy.rekey", protected):
        assert said in shown
    assert load(tmp_path / "y.toml").privacy.rekey
