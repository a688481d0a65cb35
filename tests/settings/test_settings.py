"""The settings file: what is accepted, and that every refusal names the field, its value and what is allowed."""

import re
from pathlib import Path

import msgspec
import pytest

from workers.agents.topics import matching
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings, TopicNames, load

#: The topics of a worker with `GOOD`, by what follows its name.
TOPICS = (
    "contributions",
    "contribute-state",
    "release-state",
    "rejects",
    "products",
    "budget",
)
GOOD = """
[worker]
name = "orders"
data_dir = "var/orders"
key_file = "secrets/noise.key"

[kafka]
bootstrap = "localhost:9092"

[events]
topic = "orders"
key = "shop"
items = "products"

[[histogram]]
name = "products"
mechanism = "unk_base"
tick = "10s"
horizon = 8640
max_items = 3
epsilon = 1.0
delta = 1e-9
keys = ["s1", "s2"]
"""

HISTOGRAM = GOOD[GOOD.index("[[histogram]]") :]


def loaded(directory: Path, text: str) -> Settings:
    path = directory / "orders.toml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def refusal(directory: Path, text: str) -> str:
    """The one line with which a file with this text is refused, without the file's name."""
    with pytest.raises(SettingsError) as caught:
        loaded(directory, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{directory / 'orders.toml'}: ")
    return message.removeprefix(f"{directory / 'orders.toml'}: ")


def assert_refused(directory: Path, text: str, said: str) -> None:
    """Check that the file is refused with these parts, in this order."""
    parts = map(re.escape, said.split(" ... "))
    assert re.search(".*".join(parts), refusal(directory, text))


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def with_users(further: str = "") -> str:
    text = changed('key = "shop"', 'key = "shop"\nuser = "customer"')
    return text + further + '[privacy]\nunit = "user"\n'


def test_defaults_fill_what_a_short_file_leaves_out(tmp_path: Path) -> None:
    settings = loaded(tmp_path, GOOD)
    assert (settings.worker.commit_interval_ms, settings.worker.owner_partitions) == (
        5_000,
        None,
    )
    events = settings.events
    assert (events.grace_ms, events.max_ahead_ms, events.max_bytes) == (
        0,
        300_000,
        1_000_000,
    )
    assert (events.timestamp, events.user, settings.privacy.unit) == (
        None,
        None,
        "event",
    )
    [histogram] = settings.histograms
    assert isinstance(histogram, UnkBaseConfig)
    assert (histogram.mechanism, histogram.counter, histogram.radix) == (
        "unk_base",
        "lifted",
        None,
    )
    assert (histogram.max_count, histogram.generation, histogram.topic) == (1, 1, None)
    assert (histogram.start_given, histogram.start_ms, histogram.horizon_ticks) == (
        False,
        0,
        8640,
    )


def test_every_setting_of_the_reference_is_read(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        """
[worker]
name = "orders"
data_dir = "var/orders"
key_file = "secrets/noise.key"
commit_interval = "250ms"
owner_partitions = 7
[kafka]
bootstrap = "a:9092,[::1]:9093"
[events]
topic = "in"
key = "$key"
items = '"the items"'
timestamp = "ts"
user = "customer"
grace = "2s"
max_ahead = "1m"
max_bytes = 5000
[privacy]
unit = "event"
[[histogram]]
name = "p"
mechanism = "unk_base"
tick = "1h"
horizon = "unbounded"
start = 2026-11-21T02:00:00+02:00
max_items = 4
max_count = 5
rho = 0.5
delta = 1e-6
counter = "lifted"
keys = "public"
generation = 2
topic = "out"
[[histogram]]
name = "q"
mechanism = "known_base"
tick = "1d"
horizon = 9
max_items = 1
rho = 1
delta = 1e-6
counter = "tree"
radix = 3
keys = ["s1"]
domain = ["x", "y"]
""",
    )
    assert (settings.worker.commit_interval_ms, settings.worker.owner_partitions) == (
        250,
        7,
    )
    events = settings.events
    assert (events.topic, events.key, events.items) == ("in", "$key", '"the items"')
    assert (events.timestamp, events.user) == ("ts", "customer")
    assert (events.grace_ms, events.max_ahead_ms, events.max_bytes) == (
        2_000,
        60_000,
        5_000,
    )
    first, second = settings.histograms
    assert first.lane == Lane(3_600_000, 1_795_219_200_000, max_items=4, max_count=5)
    assert (first.start_given, first.horizon_ticks) == (True, None)
    assert (first.rho, first.epsilon, first.delta) == (0.5, None, 1e-6)
    assert (first.keys, first.generation, settings.output_topic(first)) == (
        "public",
        2,
        "out",
    )
    assert isinstance(second, KnownBaseConfig)
    assert (second.counter, second.radix) == ("tree", 3)
    assert (second.keys, second.domain) == (("s1",), ("x", "y"))
    assert settings.output_topic(second) == "orders.q"


def test_paths_start_at_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("etc/orders.toml").write_text(GOOD, encoding="utf-8")
    found = load("etc/orders.toml")
    assert found.worker.key_file == tmp_path / "etc" / "secrets" / "noise.key"
    assert found.worker.data_dir == tmp_path / "etc" / "var" / "orders"


KAFKA = '[kafka]\nbootstrap = "localhost:9092"'
USERS = with_users("max_items_per_user = 5\n")
REKEYED = USERS + "rekey = true\n"
RECORD = '[privacy]\nneighbours = "record"\n'
RECORDS = GOOD + RECORD
STARTED = GOOD + "start = 2026-11-21T00:00:00Z\n"


def topics(value: str, text: str = GOOD) -> str:
    return text.replace('topic = "orders"', f"topic = {value}")


#: What replaces a part of the good file, and what is said about it.
CHANGED = [
    ('key = "shop"', 'kee = "shop"', 'events.kee ... did you mean "key"?'),
    ('items = "products"', "", "events.items is missing ... order.lines[].sku"),
    (KAFKA, "", "[kafka] ... bootstrap"),
    ("[[histogram]]", "[histogram]", "[[histogram]]"),
    (
        'name = "orders"',
        'name = "or ders"',
        'worker.name = "or ders" ... letters, digits',
    ),
    ('name = "orders"', 'name = "orders\\n"', "worker.name ... letters, digits"),
    ('"localhost:9092"', '"localhost"', 'kafka.bootstrap = "localhost" ... host:port'),
    ('tick = "10s"', "tick = 10", "'products': tick = 10 ... 1ms to 366d ... \"10s\""),
    ('tick = "10s"', 'tick = "10 sec"', 'tick = "10 sec" ... ms, s, m, h or d'),
    ('tick = "10s"', 'tick = "0s"', "tick = 0 ms ... from 1ms"),
    ('"shop"', '"shop"\ngrace = "8d"', "events.grace = 691200000 ms ... 0s to 7d"),
    ("max_items = 3", 'max_items = "3"', 'max_items = "3" ... from 1 to 10,000'),
    ("max_items = 3", "max_items = true", "max_items = true ... from 1 to 10,000"),
    ("max_items = 3", "max_items = 0", "max_items = 0 ... from 1 to 10,000"),
    ("epsilon = 1.0", "epsilon = -1", "epsilon = -1: ... above 0 and at most 50"),
    ("epsilon = 1.0", "epsilon = nan", "epsilon = NaN: ... above 0 and at most 50"),
    ("epsilon = 1.0", "", "epsilon and rho ... exactly one"),
    ("delta = 1e-9", "", "delta is missing ... 1e-50 to 0.5"),
    ("delta = 1e-9", "delta = 1", "delta = 1: ... 1e-50 to 0.5"),
    ("horizon = 8640", 'horizon = "forever"', 'horizon = "forever" ... "unbounded"'),
    ("8640", '"unbounded"', "start is missing ... 2026-11-21T00:00:00Z"),
    ('"unk_base"', '"positive_gauss"\ncounter = "tree"', "keeps no counter"),
    ('"unk_base"', '"positive_gauss"\nradix = 3', "only with counter"),
    ('keys = ["s1", "s2"]', "", 'keys is missing ... "public"'),
    ('keys = ["s1", "s2"]', "keys = []", 'keys = [] ... "public"'),
    ('["s1", "s2"]', '["s1", "s1"]', 'keys holds "s1" more than once'),
    ('"s2"', f'"{"é" * 513}"', "keys holds ... 1,026 bytes ... at most 1,024"),
    ("unk_base", "unkbase", '"unkbase" ... did you mean "unk_base" ... one of'),
    ('mechanism = "unk_base"', "", "mechanism is missing ... one of bounded_max"),
    ('"unk_base"', '"known_base"', "domain_file ... domain ... exactly one"),
    ('name = "products"', "", "histogram 1: name is missing ... lower-case"),
    ('name = "products"', 'name = "Pro"', "'Pro': name ... lower-case"),
    ('name = "products"', 'name = "rejects"', 'topic = "orders.rejects" ... worker'),
    ('"shop"', '"shop"\npartitioner = "crc32"', '"crc32" ... privacy.unit = "user"'),
    ('"shop"', '"$keys"', 'events.key = "$keys" ... "$key" ... "$all"'),
    ('"products"\n\n', '"shop"\n\n', 'events.items = "shop" ... other than key\'s'),
    ('"shop"', '"$all"', "'products': keys ... leave it out"),
]
#: What is added to it.
ADDED = [
    ("[privcy]\n", 'privcy ... did you mean "privacy"?'),
    ("max_item = 3\n", "'products': max_item: ... did you mean \"max_items\"?"),
    ('domain_file = "d"\n', "'products': domain_file: unknown name"),
    ("rho = 0.1\n", "epsilon = 1.0 and rho = 0.1 ... exactly one"),
    ("start = 2026-11-21T00:00:00\n", "start = 2026-11-21T00:00:00: ... time zone"),
    ("start = 1969-12-31T00:00:00Z\n", "start = 1969-12-31T00:00:00Z ... 1970"),
    ("start = 2026-11-21T00:00:00.0005Z\n", "start = ... whole milliseconds"),
    ('counter = "binary"\n', 'counter = "binary" ... "lifted", "tree" or "sqrt"'),
    ("radix = 2\n", 'radix = 2 ... counter = "tree"'),
    (HISTOGRAM, "histogram 'products': name ... another histogram"),
    (
        'topic = "orders_rejects"\n',
        'topic = "orders_rejects" ... . and _ count as equal',
    ),
    ('topic = "orders"\n', "histogram 'products': topic ... events.topic"),
    ('topic = "a/b"\n', 'topic = "a/b" ... a Kafka topic name'),
    (
        '[privacy]\nunit = "user"\n',
        'events.user is missing ... "user" needs it ... "$key"',
    ),
    ("max_items_per_user = 5\n", 'max_items_per_user = 5 ... privacy.unit = "user"'),
    ("[[[\n", "not TOML ... line"),
    (
        f"[kafka.client]\nx = {('{' + 'a.' * 99 + 'a = ') * 50}1{'}' * 50}\n",
        "nested too deeply",
    ),
    (
        "[privacy]\nrekey = true\n",
        'privacy.rekey = true: only with privacy.unit = "user"',
    ),
    ('[privacy]\nrekey = "yes"\n', 'privacy.rekey = "yes" ... true or false'),
]
REFUSALS = [
    *((changed(old, new), said) for old, new, said in CHANGED),
    *((GOOD + added, said) for added, said in ADDED),
    ("kafka = 5\n" + changed(KAFKA, ""), "kafka = 5 ... [kafka]"),
    (GOOD.replace(HISTOGRAM, ""), "histogram is missing ... [[histogram]]"),
    (
        GOOD
        + HISTOGRAM.replace('"products"', '"others"')
        + 'topic = "orders.products"\n',
        "histogram 'others': topic = \"orders.products\" ... histogram 'products': topic",
    ),
    (topics('["a", "a b"]'), "events.topic = ... a list of such"),
    (topics("[]"), "events.topic = [] ... a list of such"),
    (topics('["a", "b", "a"]'), 'events.topic holds "a" more than once'),
    (topics('["a", "^b"]'), "events.topic = ... a list of such"),
    (topics('"^orders-("'), 'events.topic = "^orders-(": not a regular expression'),
    (
        topics('["eu", "orders_rejects"]'),
        'events.topic = "orders_rejects" ... orders.rejects',
    ),
    (
        topics('["a", "b"]', USERS),
        'events.topic = ["a", "b"] ... "user" needs one topic',
    ),
    (
        topics('"^a"', USERS),
        'events.topic = "^a" ... privacy.unit = "user" needs one topic',
    ),
    (with_users(), 'max_items_per_user is missing ... "user" needs it'),
    (
        USERS.replace('"unk_base"', '"limit_dom"\nkbar = 5\nk = 2'),
        'mechanism = "limit_dom" ... privacy.unit = "user" needs known_base, known_laplace, unk_base, ',
    ),
    (GOOD + "x = " + "[" * 5_000 + "]" * 5_000 + "\n", "not TOML: nested too deeply"),
    (
        GOOD + "[kafka.client]\n" + "a." * 5_000 + "b = 1\n",
        "not TOML: nested too deeply",
    ),
    (GOOD + '\'a.b\' . "\\"" .' * 50 + "b = 1\n", "not TOML: nested too deeply"),
    (GOOD + "a." * 99 + "b = 1\n", "a: unknown name"),
    (
        REKEYED.replace('"shop"', '"shop"\npartitioner = "crc32"'),
        '"crc32": only without privacy.rekey',
    ),
    (
        REKEYED.replace('user = "customer"', 'user = "customer"\nmax_ahead = "51m"'),
        'events.max_ahead = "51m": at most 50m with privacy.rekey and without events.timestamp',
    ),
    (RECORDS, "start is missing: ... the first record decides"),
    (
        STARTED.replace('["s1", "s2"]', '"public"') + RECORD,
        'keys = "public": ... needs declared keys',
    ),
    (
        REKEYED + 'neighbours = "record"\n',
        'privacy.rekey = true: not with neighbours = "record"',
    ),
    (
        GOOD + '[privacy]\ndeliver_after = "1s"\n',
        'deliver_after = "1s": only with neighbours = "record"',
    ),
    (
        STARTED + RECORD + 'deliver_after = "2m"\n',
        "deliver_after = 120000 ms: ... 100ms to 1m",
    ),
    (
        USERS.replace("[kafka]", "user_partitions = 3\n[kafka]"),
        "partitions = 3: only with privacy",
    ),
    (
        REKEYED.replace("[kafka]", "user_partitions = 0\n[kafka]"),
        "partitions = 0 ... from 1 to",
    ),
    (
        REKEYED.replace('name = "products"', 'name = "by-user"'),
        "orders.by-user ... worker",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSALS)
def test_a_bad_setting_is_refused_in_words(
    tmp_path: Path, text: str, said: str
) -> None:
    assert_refused(tmp_path, text, said)


def test_a_tick_is_delivered_two_seconds_after_its_end_unless_said_otherwise(
    tmp_path: Path,
) -> None:
    assert loaded(tmp_path, GOOD).privacy.delivery_ms is None
    for further, after_ms in (("", 2_000), ('deliver_after = "250ms"\n', 250)):
        settings = loaded(tmp_path, STARTED + RECORD + further)
        assert settings.privacy.delivery_ms == after_ms


def test_keys_may_be_left_out_when_there_is_one_stream_key(tmp_path: Path) -> None:
    text = changed('"shop"', '"$all"').replace('keys = ["s1", "s2"]', "")
    assert loaded(tmp_path, text).histograms[0].keys == ("all",)


def test_users_may_come_from_several_topics_where_they_are_brought_together(
    tmp_path: Path,
) -> None:
    found = loaded(tmp_path, topics('["a", "b"]', REKEYED))
    assert found.privacy.rekey and found.worker.user_partitions is None
    assert found.internal_topics[4:] == ("orders.by-user", "orders.rekey-state")
    assert len(loaded(tmp_path, USERS).internal_topics) == 4
    assert not loaded(tmp_path, GOOD).privacy.rekey
    ahead = '"customer"\ntimestamp = "at"\nmax_ahead = "2h"'
    found = loaded(tmp_path, REKEYED.replace('"customer"', ahead))
    assert found.events.max_ahead_ms == 7_200_000  # not by the record's time


def test_a_list_of_topics_has_no_order_and_one_of_it_is_that_topic(
    tmp_path: Path,
) -> None:
    def named(topic: str) -> TopicNames:
        return loaded(tmp_path, topics(topic)).events.topics

    assert named('["b", "a"]') == named('["a", "b"]') == TopicNames(("a", "b"))
    assert named('["orders"]') == named('"orders"') == TopicNames(("orders",))
    assert [named(one).identity for one in ('"a"', '["b", "a"]', '"^a"')] == [
        "a",
        ["a", "b"],
        "^a",
    ]
    assert named('"a"').is_single and named('["a"]').is_single
    assert not named('["b", "a"]').is_single and not named('"^a$"').is_single
    assert [str(named(one)) for one in ('"a"', '["b", "a"]', '"^a"')] == [
        "a",
        "a, b",
        "^a",
    ]


def test_an_expression_skips_topics_that_belong_to_a_worker(tmp_path: Path) -> None:
    expression = '"^(orders|other|eu).*"'
    settings = loaded(tmp_path, topics(expression))
    mine = [*settings.internal_topics, settings.budget_topic, "orders.products"]
    others = [
        f"other.{one}" for one in ("contributions", "contribute-state", "release-state")
    ]
    others += ["other.rejects", "other.budget"]
    events = ["eu", "eu.rejects", "orders-eu", "orders.eu"]
    assert matching(settings, [*events, *mine, *others, "us-orders", "Eu"]) == events
    nobodys = [*events, *others[:3], "other.budget"]  # one is missing
    assert matching(settings, nobodys) == sorted(nobodys)
    settings = loaded(tmp_path, topics('"^eu"'))
    assert not settings.events.topics.matches("eu-1")


@pytest.mark.parametrize(
    ("name", "content"),
    [("missing", None), ("directory", b""), ("latin", b"caf\xe9 = 1")],
)
def test_an_unreadable_file_is_named(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / name
    if name == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=str(path)):
        load(path)


def test_a_histogram_is_checked_again_when_decoded_from_json(tmp_path: Path) -> None:
    [histogram] = loaded(tmp_path, GOOD).histograms
    stored = msgspec.json.encode(histogram)
    found = msgspec.json.decode(stored, type=type(histogram))
    assert found == histogram
    assert b'"tick":10000' in stored
    with pytest.raises(msgspec.ValidationError, match="exactly one of them"):
        msgspec.json.decode(
            stored.replace(b'"rho":null', b'"rho":1.0'), type=type(histogram)
        )
