"""Findings of `check` on known samples, and output that is safe to print."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.quietcount import Quietcount
from tests.worker.harness import Bare, known, toml, unk
from workers.commands.check.check import show
from workers.commands.check.examine import Findings, examine
from workers.commands.check.sample import Part, Sample, of_file
from workers.commands.init.sample import shares
from workers.kafka.records import Records
from workers.mechanisms.mechanism import expect_type
from workers.mechanisms.registry import build
from workers.mechanisms.running.sliding import Sliding
from workers.pipeline.growth.sources import Place, SourceTopic
from workers.settings.settings import load

AT = time.time_ns() // 1_000_000 - 3_600_000
DAY = AT // 86_400_000 * 86_400_000


class Check:
    """What `check` finds and prints about events under settings."""

    def __init__(
        self,
        directory: Path,
        histograms: Iterable[Mapping[str, Any]] = (unk(),),
        unit: str = "event",
        **events: object,
    ) -> None:
        self._directory = directory
        self.path = directory / "settings.toml"
        fields = {"topic": "events", "key": "key", "items": "items", "timestamp": "ts"}
        document = {
            "worker": {"name": "w", "data_dir": "data", "key_file": "key"},
            "kafka": {"bootstrap": "nowhere:9092"},
            "events": fields | events,
            "privacy": {"unit": unit},
            "histogram": list(histograms),
        }
        self.path.write_text(toml(document))
        self.settings = load(self.path)

    def file(self, events: Iterable[object]) -> str:
        """Write events as lines: bytes as they are, others as JSON."""
        path = self._directory / "events.jsonl"
        lines = (e if isinstance(e, bytes) else json.dumps(e).encode() for e in events)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return str(path)

    def sample(self, events: Iterable[object] | str, number: int = 10_000) -> Sample:
        source = events if isinstance(events, str) else self.file(events)
        return of_file(self.settings, source, number)

    def found(self, events: Iterable[object] | str) -> Findings:
        return examine(self.settings, self.sample(events))

    def said(self, events: Iterable[object]) -> str:
        return self.said_of(self.sample(events))

    def said_of(self, sample: Sample) -> str:
        with (self._directory / "out").open("w") as out:
            console = Console(record=True, width=100, file=out)
            found = examine(self.settings, sample)
            show(found, sample, self.settings, console)
        printed = console.export_text()
        assert max(map(len, printed.splitlines())) <= 100
        return " ".join(printed.split())


def event(i: int = 0, **changes: Any) -> dict[str, Any]:
    return {"key": "k", "items": ["a"], "ts": AT + 100 * i} | changes


def test_records_are_accepted_skipped_or_rejected_and_nothing_else(
    tmp_path: Path,
) -> None:
    where = [{"field": "type", "in": ["buy"]}]
    check = Check(tmp_path, [unk(where=where)])
    good = [event(i, type="buy") for i in range(10)]
    other = [event(i, type="view") for i in range(10, 15)]
    bad = [event(15, type="buy", items=7.5), *[event(16, type="buy", key=None)] * 2]
    findings = check.found([*good, *other, *bad, b"{"])
    assert (
        findings.records,
        findings.accepted,
        findings.skipped,
        findings.rejected,
    ) == (
        19,
        10,
        5,
        4,
    )
    most, *_ = findings.why
    assert most.reason == "field 'key' is null"
    assert most.number == 2
    assert {why.reason: why.example for why in findings.why}["not JSON"] == "{"
    assert (findings.first_ms, findings.last_ms) == (AT, AT + 900)


def test_a_missing_field_comes_with_the_nearest_that_these_records_have(
    tmp_path: Path,
) -> None:
    check = Check(tmp_path)
    moved = [{"order": {"key": "k"}, "items": ["a"], "ts": AT} for _ in range(3)]
    found = check.found([event(), *moved])
    [why] = found.why
    assert (why.reason, why.number) == ("missing field 'key'", 3)
    assert why.absent is not None and why.absent.path == "key"
    assert next(iter(why.absent.nearest.items())) == ("order.key", 1.0)


def test_a_list_that_is_elsewhere_is_named_too(tmp_path: Path) -> None:
    check = Check(tmp_path, items="lines[].sku")
    moved = {"key": "k", "order": {"lines": [{"sku": "a"}]}, "ts": AT}
    [why] = check.found([moved]).why
    assert (
        why.absent is not None and next(iter(why.absent.nearest)) == "order.lines[].sku"
    )


@pytest.mark.parametrize(
    ("unit", "value", "word"),
    [
        ("ms", "2026-11-21T08:00:00Z", 'timestamp_unit = "iso"'),
        ("ms", AT / 1000, 'timestamp_unit = "s"'),
        ("iso", AT, 'timestamp_unit = "ms"'),
        ("s", str(AT * 1000), 'timestamp_unit = "us"'),
        ("ms", str(AT // 1000), 'timestamp_unit = "s"'),
        ("iso", str(AT * 1000), 'timestamp_unit = "us"'),
        ("ms", "yesterday", ""),
    ],
    ids=[
        "iso for ms",
        "s for ms",
        "ms for iso",
        "us as text",
        "s as text",
        "text for iso",
        "none",
    ],
)
def test_an_invalid_time_suggests_the_unit_that_makes_it_valid(
    tmp_path: Path, unit: str, value: object, word: str
) -> None:
    check = Check(tmp_path, timestamp_unit=unit)
    [why] = check.found([event(ts=value)]).why
    assert why.hint.startswith(word) and bool(why.hint) == bool(word)


def test_times_of_another_century_are_rejected_with_the_likely_unit(
    tmp_path: Path,
) -> None:
    """Whole seconds are a valid number of ms: all is in January 1970."""
    check = Check(tmp_path)
    source = [event(ts=AT // 1000 + i) for i in range(5)]
    found = check.found(source)
    assert found.accepted == 0
    assert [why.reason for why in found.why] == [
        "dated before 2000: seconds instead of ms?"
    ]
    assert "events a tick" not in check.said(source), "a rate by a wrong clock"
    assert check.found([event()]).time_hint == ""


def test_a_histogram_says_what_it_sees_and_what_its_bounds_cut(tmp_path: Path) -> None:
    histogram = unk(
        max_items=2, max_count=3, keys=["k"], where=[{"field": "n", "min": 5}]
    )
    check = Check(tmp_path, [histogram, unk("all", keys=["other"])])
    events = [event(i, n=i, items={"a": i, "b": 1}) for i in range(8)]
    events += [event(i, n=i, items={"a": i, "b": 1, "c": 1}) for i in (8, 9)]
    events.append(event(10, n=10, key="other"))
    found = check.found(events).histograms[0]
    assert (found.looked_at, found.labels) == (6, 3)
    assert (found.keys, found.served, found.unserved) == (2, 1, 1)
    assert (found.items.median, found.items.most, found.items.above) == (2, 3, 2)
    assert (found.amounts.most, found.amounts.above) == (9, 5)


def test_the_share_of_clamped_numbers_is_told(tmp_path: Path) -> None:
    """Of an event's items each has a number; those of rejected events are none."""
    of = {"field": "paid", "from": -1, "to": 9.5, "step": 0.5}
    check = Check(tmp_path, [unk(max_items=2, sum=of)])
    paid = [-1.001, -1, 0, 9.5, 9.51, 1e300, "x", None]
    events = [event(i, paid=n, items=["a", "b"]) for i, n in enumerate(paid)]
    said = check.said(events)
    assert (
        "numbers in paid: 12, of which 6 (50.0 %) are clamped: 2 below from = -1"
        in said
    )
    assert "4 above to = 9.5" in said
    assert (
        "field 'paid' is a text that holds no number: 1" in said
        and "field 'paid' is null: 1" in said
    )


def test_the_estimate_is_the_rate_of_the_sample(tmp_path: Path) -> None:
    """Ten events a second for 100 s: an item's expected count is its rate, its noise that of the plan."""
    running = unk(epsilon=1.0, tick="10s", horizon=100, max_items=1)
    check = Check(tmp_path, [running, known(max_items=1)])
    events = [event(i, items=["a" if i % 10 else "rare"]) for i in range(1_000)]
    found = check.found(events)
    first, second = (one.expected for one in found.histograms)
    assert first is not None and second is not None
    assert first.events == pytest.approx(100, rel=0.01)
    assert (first.largest, first.median) == pytest.approx((90, 50), rel=0.01)
    mechanism = build(check.settings.histograms[0])
    assert first.sd_first == mechanism.sd(1) and first.sd_worst >= first.sd_first
    for passing in first.passing:
        counts = [rate * passing.tick for rate in (90, 10)]
        assert passing.threshold == mechanism.threshold(passing.tick)
        assert passing.shown == sum(count > passing.threshold for count in counts)
    assert [passing.tick for passing in first.passing] == [1, 100]
    assert [passing.shown for passing in first.passing] == [1, 2] or first.passing[
        0
    ].shown == 0
    assert second.declared == pytest.approx(0.9, abs=0.001) and not second.passing


@pytest.mark.parametrize(("grace", "late"), [("0s", 3), ("5s", 3), ("6s", 0)])
def test_events_whose_tick_was_closed_are_counted_for_each_histogram(
    tmp_path: Path, grace: str, late: int
) -> None:
    """Those that come out of order within an open tick are not called late; a day is open for longer."""
    histograms = [unk(tick="10s"), unk("days", tick="1d")]
    check = Check(tmp_path, histograms, grace=grace)
    # The third, fourth and fifth come when the second tick is open.
    times = (2, 15, 3, 9, 4, 14, 16)
    events = [event(ts=DAY - 86_400_000 + 1_000 * at) for at in times]
    said = check.said(events)
    assert said.count("looks at 7 of 7 events") == 2
    line = f"{late} events of these (42.9 %) come after their tick has closed"
    assert said.count(line) == said.count("tick has closed") == (late > 0)


def test_events_before_the_start_do_not_count(tmp_path: Path) -> None:
    check = Check(tmp_path, [unk(start=Bare("2100-01-01T00:00:00Z"))])
    found = check.found([event(i) for i in range(7)]).histograms[0]
    assert found.early == 7 and found.expected is None


@pytest.mark.slow
def test_every_mechanism_can_be_estimated(tmp_path: Path) -> None:
    check = Check(tmp_path)
    for path in sorted(Path("examples/mechanisms").glob("*.toml")):
        settings = load(path)
        fields = settings.events
        names = fields.key, fields.items, fields.timestamp or "ts"
        events = [
            dict(zip(names, ("s1", [f"p{i % 5}"], AT + i), strict=True))
            for i in range(200)
        ]
        check.settings = settings
        assert settings.histograms[0].name in check.said(events)


def test_record_content_cannot_control_the_terminal(
    tmp_path: Path, quietcount: Quietcount
) -> None:
    check = Check(tmp_path)
    odd = (
        {"\x9b31mkey": "k", "items": ["a"], "ts": AT},
        event(key="\x1b]0;x\x07", items=7.5),
    )
    broken = b'{"key":"\x1b[2J\x07\xc2\x9b31m"', b"\xff\x1b[31m"
    source = check.file([*odd, *broken])
    _, out, err = quietcount(f"check -c {check.path} --input {source}", code=1)
    assert "none of 4 would be accepted" in err
    assert all(char.isprintable() or char == "\n" for char in out)
    assert "\\x1b[2J" in out and "\\x9b31mkey" in out


@pytest.mark.slow
def test_parquet_is_looked_at_like_lines(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check = Check(tmp_path)
    events = [event(i) for i in range(20)] + [event(20, key=None)]
    pq.write_table(pa.Table.from_pylist(events), tmp_path / "events.parquet")
    of_lines = check.found(events)
    of_rows = check.found(str(tmp_path / "events.parquet"))
    assert of_lines.histograms == of_rows.histograms
    rows, texts = (
        [(why.reason, why.number) for why in one.why] for one in (of_rows, of_lines)
    )
    assert rows == texts
    for name in ("events.parquet", "events.jsonl"):
        assert len(check.sample(str(tmp_path / name), 5)) == 5


def test_shares_are_equal_where_there_is_enough() -> None:
    there = {("a", 0): 100, ("a", 1): 3, ("a", 2): 100}
    assert shares(there, 43) == {("a", 0): 20, ("a", 1): 3, ("a", 2): 20}
    assert sum(shares({("a", p): 10 for p in range(7)}, 5).values()) == 5
    assert shares({("a", 0): 0}, 5) == {("a", 0): 0}
    assert shares({}, 5) == {}


def test_with_unit_user_the_bounds_of_users_are_examined(tmp_path: Path) -> None:
    """One user with 30 events of one item is one count: neither is max_count too much, nor do 30 pass a threshold."""
    histogram = unk(max_items=1, max_count=3, max_items_per_user=2, horizon=86_400)
    check = Check(tmp_path, [histogram], unit="user", user="user")
    events = [event(user="one", ts=DAY + i, items=["a"]) for i in range(30)]
    events += [
        event(user="two", ts=DAY + 100 + i, items=[item])
        for i, item in enumerate("abcd")
    ]
    found = check.found(events).histograms[0].of_users
    assert found is not None and found.users == 2
    assert (found.pairs.most, found.pairs.above) == (4, 1)
    assert (found.amounts.most, found.amounts.above) == (30, 1)
    text = check.said(events)
    cuts = ("max_items_per_user = 2 cuts 1 user (50.0 %)", "max_count = 3 cuts 1 count")
    for words in (*cuts, "different users on, at least", "before users are bounded"):
        assert words in text
    assert "only adds noise" not in text and "passed by" not in text


def test_a_user_of_several_days_is_bounded_in_each(tmp_path: Path) -> None:
    histogram = unk(max_items_per_user=1, horizon=86_400)
    check = Check(tmp_path, [histogram], unit="user", user="user")
    events = [event(user="u", ts=DAY - i * 86_400_000) for i in range(3)]
    found = check.found(events).histograms[0].of_users
    assert found is not None and (found.users, found.amounts.most) == (3, 1)


@pytest.mark.parametrize("items", [[], None])
def test_events_without_items_are_accepted_and_count_nothing(
    tmp_path: Path, items: object
) -> None:
    """An accepted share of 100 % would otherwise look as if all of them counted."""
    check = Check(tmp_path, missing="empty")
    source = [event(0), event(1, items=items), event(2, items=items)]
    assert check.found(source).histograms[0].without_items == 2
    said = "2 events of these (66.7 %) accepted without any item: they count nothing"
    assert said in check.said(source)


def test_missing_empty_is_suggested_only_where_it_helps(tmp_path: Path) -> None:
    check = Check(tmp_path)
    helped = [{"key": "k", "ts": AT}, event(items=None)]
    others = [event(), event(items=7.5), event(key=None), {"ts": AT, "items": None}]
    source = [*helped, *others]
    assert sum(why.empty for why in check.found(source).why) == 2
    assert 'missing = "empty" would accept 1 of them' in check.said(source)
    check = Check(tmp_path, missing="empty")
    assert sum(why.empty for why in check.found(source).why) == 0


def test_undeclared_keys_are_told_with_their_numbers(tmp_path: Path) -> None:
    """The most frequent first; also those that only another histogram declares."""
    check = Check(tmp_path, [unk(keys=["a"]), unk("b", keys=["a", "b"])])
    keys = ["a"] * 4 + ["b"] * 3 + [" a"] * 2 + ["A", "\x1b[2J"]
    said = check.said([event(i, key=k) for i, k in enumerate(keys)])
    assert '3 undeclared keys: " a" (2), "A" (1), "\\u001b[2J" (1)' in said
    assert 'do not count here; the most frequent: "b" (3)' in said


def test_many_undeclared_keys_are_cut_to_the_most_frequent(tmp_path: Path) -> None:
    check = Check(tmp_path, [unk(keys=["a"])])
    keys = [f"k{i}" for i in range(50)] + ["k7"] * 9 + ["z" * 900]
    said = check.said([event(i, key=k) for i, k in enumerate(keys)])
    assert 'the most frequent of 51 undeclared keys: "k7" (10), "k0" (1)' in said
    assert "z" * 100 not in said.partition("most frequent")[2].partition("{")[0]


@pytest.mark.parametrize("declared", [["s1", "s2"], ["s1"], "public"])
def test_quotes_of_record_keys_in_json_are_told(tmp_path: Path, declared: Any) -> None:
    """As many serializers write them; with public keys, the quotes would be published."""
    check = Check(tmp_path, [unk(keys=declared)], key="$key")
    records = [json.dumps(event(i)).encode() for i in range(6)]
    keys = [b'"s1"', b'"s1"', b'"s2"', b'"s1"', b'"s2"', b'"s1"']
    part = Part(
        Place(0, SourceTopic("events", 1, None), 0), Records.of(records, keys, [AT] * 6)
    )
    said = check.said_of(Sample("events", [part], check.settings.shape, live=True))
    assert "the record keys are JSON strings; the quotes are part of each key" in said
    if declared == "public":
        assert said.count('"\\"s1\\"", "\\"s2\\""') == 1
    else:
        assert '2 undeclared record keys: "\\"s1\\"" (4), "\\"s2\\"" (2)' in said
        assert 'keys = ["\\"s1\\"", "\\"s2\\""]' in said


@pytest.mark.parametrize("stray", [-400, 400], ids=["long ago", "far ahead"])
def test_empty_ticks_beside_a_wrong_date_are_told(tmp_path: Path, stray: int) -> None:
    """Each would be published: 400 days have 9,600 ticks of an hour."""
    check = Check(tmp_path, [unk(tick="1h", horizon="1d", keys=["k", "l"])])
    events = [event(i) for i in range(500)]
    wrong = event(ts=AT + stray * 86_400_000)
    source = [wrong, *events] if stray < 0 else [*events, wrong]
    said = check.said(source)
    assert "ticks in a row have no event, 19,1" in said
    side = "before" if stray < 0 else "after"
    assert f"is the date of the 1 event {side} them right?" in said
    assert ("set start = " in said) == (stray < 0)
    assert "in a row have no event" not in check.said(events)


BROKEN = {
    "an escape of nginx": (
        rb'{"uri":"/tea","agent":"a \x22b\x22"}',
        "at byte 26",
        r'"a >>>\x22b',
    ),
    "a comma too many": (b'{"a":1,}', "at byte 8", '{"a":1,>>>}'),
    "a number of Python": (b'{"a":NaN}', "at byte 6", '{"a":>>>NaN}'),
    "cut short": (b'{"a":[1,2', "the first ends too early, at byte 9", '{"a":[1,2>>>'),
    "Latin-1": (b'{"a":"caf\xe9"}', "at byte 10: 0xe9 is not UTF-8", r'"caf>>>\xe9"}'),
    "a mark before it": (b'\xef\xbb\xbf{"a" 1}', "at byte 9", '{"a" >>>1}'),
    "a control character": (b'{"a":"b\x07"}', "at byte 8", r'"b>>>\x07"}'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_is_not_json_is_shown_around_its_fault(
    tmp_path: Path, name: str
) -> None:
    """Its beginning, which the example shows, is good JSON."""
    record, place, context = BROKEN[name]
    filler = json.dumps({"filler": "x" * 300}).encode()
    check = Check(tmp_path)
    said = check.said([event(), record])
    assert place in said and context in said
    long = filler[:-1] + b', "b": ' + record.removeprefix(b"\xef\xbb\xbf") + b"}"
    if name != "cut short":
        assert context in check.said([event(), long])


def test_without_epochs_the_estimate_is_by_window(tmp_path: Path) -> None:
    """What a window counts, not what a year of ticks would."""
    windows = ["10s", "1m"]
    check = Check(tmp_path, [unk(horizon="never", windows=windows, max_items=1)])
    # Ten events a second of one item, and one in ten seconds of another.
    events = [event(i, items=["b" if i % 100 == 50 else "a"]) for i in range(600)]
    [found] = check.found(events).histograms
    assert found.expected is not None and found.expected.passing == ()
    short, long = found.expected.windows
    assert (short.ms, long.ms) == (10_000, 60_000)
    for window, ticks in ((short, 10), (long, 60)):
        assert window.largest == pytest.approx(9.9 * ticks, rel=0.01)
        assert window.median == pytest.approx(5 * ticks, rel=0.01)
    # With the noise of these settings one item passes: thresholds are those of each window.
    mechanism = build(check.settings.histograms[0])
    assert isinstance(mechanism, Sliding)
    assert short.threshold == mechanism.threshold_of(0)
    assert long.threshold == mechanism.threshold_of(1)
    assert long.threshold is not None and long.sd > short.sd
    rare = long.threshold < 0.1 * 60
    assert (short.shown, long.shown) == (1, 1 + rare)
    said = check.said(events)
    assert "in the last 10s: 99 of the largest item" in said
    assert f"threshold {long.threshold:,}, passed by {long.shown} of 2 pairs" in said
    assert "after tick" not in said


def test_without_epochs_the_bounds_of_users_are_by_period(tmp_path: Path) -> None:
    """A user with three pairs in each of two periods is two users of a period."""
    settings: dict[str, Any] = {"horizon": "never", "windows": ["10s", "1m"]}
    settings |= {"user_period": "10s", "max_items_per_user": 2, "max_items": 1}
    events = [
        event(user="u", ts=DAY + at, items=[item])
        for at in (1_000, 2_000, 15_000)
        for item in ("a", "b", "c")
    ]
    for unique in (False, True):
        histogram = unk(**settings, unique_users=unique)
        check = Check(tmp_path, [histogram], unit="user", user="user")
        [found] = check.found(events).histograms
        assert found.of_users is not None
        assert (found.of_users.users, found.of_users.pairs.most) == (2, 3)
        said = " ".join(check.said(events).split())
        assert "bounds hold over a period of 10s" in said
        assert "max_items_per_user = 2 cuts 2 users" in said
        mechanism = build(check.settings.histograms[0], "user")
        threshold = expect_type(Sliding, mechanism).threshold_of(0)
        assert threshold is not None
        people = f"about {threshold + 1:,} different users" in said
        assert people == unique
        assert ("counts once for an item in a window" in said) == unique
