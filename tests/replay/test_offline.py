"""One pass over the events serves many histograms; Ctrl-C leaves whole ticks; the same input gives the same bytes."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.replay.backtest.backtests import KEY, events, lines, text_of
from tests.replay.site import T0, Printed, run_replay, settings_of
from tests.test_cli import interrupted
from tests.worker.harness import Bare, command, unk
from workers.cli import execute
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import Snapshot
from workers.replay.gaps import EventTimes
from workers.replay.offline import (
    Offline,
    ReplayHistogram,
    Summary,
    fresh_histograms,
    infrequent_gc,
    replay,
)
from workers.replay.source import EventBatch, Source
from workers.runtime.errors import StateRefused
from workers.settings.files import read_key
from workers.settings.settings import Settings


def text(number: int, seconds: float = 30.0) -> bytes:
    return text_of(events(number, seconds=seconds, keys="abc"))


def snapshots(
    settings: Settings,
    content: bytes,
    histograms: list[ReplayHistogram] | None = None,
    key: NoiseKey | None = None,
) -> list[Snapshot]:
    found: list[Snapshot] = []
    source = lines(settings, content)
    replay(settings, key or KEY, source, found.append, histograms=histograms)
    return found


def test_histograms_of_several_settings_in_one_pass_are_each_as_alone(
    tmp_path: Path,
) -> None:
    variants = [
        settings_of(tmp_path, [unk(epsilon=epsilon, max_items=most, tick=tick)])
        for epsilon in (5.0, 20.0)
        for most, tick in ((1, "1s"), (3, "1s"), (2, "7s"))
    ]
    content = text(5_000)
    together = [fresh_histograms(settings, KEY)[0] for settings in variants]
    ids: dict[str, list[bytes]] = {}
    for snapshot in snapshots(variants[0], content, together):
        ids.setdefault(json.loads(snapshot.value)["id"], []).append(snapshot.value)
    assert len(ids) == len(variants)
    for settings in variants:
        alone = [snapshot.value for snapshot in snapshots(settings, content)]
        assert alone and alone == ids[json.loads(alone[0])["id"]]


def test_a_gap_of_very_many_ticks_is_refused_wherever_it_is(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [unk()])
    for before in ([T0], [T0, T0 + 5_000]):
        source = lines(settings, b"")
        offline = Offline(settings, KEY, fresh_histograms(settings, KEY), source)
        *batches, ahead = (
            batch
            for at in (*before, T0 + 10_000_010_000)
            for batch in lines(
                settings, b'{"key":"a","items":"x","ts":%d}\n' % at
            ).batches()
        )
        for batch in batches:
            offline.add(batch)
        message = "10,000,0.. ticks are to be published after .* at once"
        with pytest.raises(StateRefused, match=message):
            offline.add(ahead)


def test_nothing_is_written_where_nobody_reads_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    summary = replay(settings, KEY, lines(settings, text(1_000)))
    assert (summary.ticks, summary.snapshots) == (30, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("case", ["new", "over an older one", "nothing yet"])
def test_ctrl_c_leaves_a_readable_file_and_exit_130(tmp_path: Path, case: str) -> None:
    """A file under the name that was asked for is complete: an older one stays until the new one is."""
    settings = settings_of(tmp_path)
    content = b"" if case == "nothing yet" else text(60_000, seconds=60)
    pipe = tmp_path / "pipe"
    out = tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    if case != "new":
        out.write_bytes(b"older\n")
    given = "-c", str(tmp_path / "settings.toml"), "--input", str(pipe)
    part = tmp_path / "out.jsonl.part"
    with (
        subprocess.Popen(
            command("replay", *given, "--snapshots", str(out)),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        pipe.open("wb") as writing,
    ):
        writing.write(content)
        writing.flush()
        # the pipe stays open: there is no end of the input
        while not part.exists() or (content and part.stat().st_size == 0):
            assert process.poll() is None
            time.sleep(0.05)
        errors = interrupted(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and not part.exists()
    if case != "new":
        assert out.read_bytes() == b"older\n"
    if case == "nothing yet":
        return
    assert "PARTIAL" in errors and "stopped" in errors
    found = (out if case == "new" else tmp_path / "out.jsonl.partial").read_bytes()
    whole = snapshots(settings, content)
    last_ms = json.loads(found.splitlines()[-1])["end"]
    of_whole_ticks = [one.value + b"\n" for one in whole if one.end_ms <= last_ms]
    assert found == b"".join(of_whole_ticks)
    assert 0 < len(of_whole_ticks) < len(whole)


def test_the_report_lists_rejects_up_to_a_hundred(
    tmp_path: Path, capsys: Printed
) -> None:
    settings_of(tmp_path)
    good = text(200).splitlines()
    (tmp_path / "in.jsonl").write_bytes(b"\nbroken\n".join([*good, b""]))
    assert run_replay(tmp_path) == 0
    errors = capsys.readouterr().err
    assert "200 events, 200 rejected" in errors
    assert "200 lines rejected: not JSON" in errors
    assert "line 2: not JSON" in errors and "line 200: not JSON" in errors
    assert "line 202" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "x.jsonl", "--topic"], "give either --input FILE or --topic"),
        ([], "give either --input FILE or --topic"),
        (
            ["--input", "x.jsonl", "--from", "2026-01-01"],
            "--from and --to go with --topic",
        ),
        (["--topic", "--from", "yesterday"], "--from yesterday: a time such as"),
        (["--topic", "--from", "9" * 20], f"--from {'9' * 20}: a time such as"),
        (
            ["--topic", "--from", "2026-01-02", "--to", "2026-01-01T12:00"],
            "an empty range",
        ),
        (["--input", "nowhere.jsonl"], "--input nowhere.jsonl: No such file"),
        (["--input", os.devnull], "no events in it"),
    ],
)
def test_what_cannot_be_replayed_is_one_line_and_exit_2(
    tmp_path: Path, capsys: Printed, arguments: list[str], message: str
) -> None:
    settings_of(tmp_path)
    assert execute(["replay", "-c", str(tmp_path / "settings.toml"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors


def test_progress_tells_the_rate_and_the_time_left(tmp_path: Path) -> None:
    from workers.commands.replay import _progress_text

    settings = settings_of(tmp_path)
    times = EventTimes(settings.histograms)
    summary = Summary(
        times, events=1_000, snapshots=3, position=250, total=1_000, seconds=20.0
    )
    text_of_all = (
        "1,000 events, 0 rejected, 3 snapshots, 20.0 s, 50 events/s, 25%, 1:00 left"
    )
    assert _progress_text(summary) == text_of_all
    assert "left" not in _progress_text(Summary(times, events=1, seconds=1.0))
    told: list[Any] = []
    content = text(500)
    source = lines(settings, content)
    replay(settings, KEY, source, progress=lambda s: told.append((s.position, s.total)))
    assert told[-1] == (len(content), len(content))


def test_a_tick_does_not_wait_for_a_partition_that_has_ended(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    ticks: list[int] = []

    def write(snapshot: Snapshot) -> None:
        ticks.append(snapshot.end_ms)

    class Ending(Source):
        partitions = 3
        total = None

        def ended(self) -> frozenset[int]:
            return frozenset({1, 2} if i > 3 else {2})

    offline = Offline(
        settings, KEY, fresh_histograms(settings, KEY), Ending(), write=write
    )
    all_lines = text(3_000).splitlines(keepends=True)
    for i in range(30):
        [batch] = lines(
            settings, b"".join(all_lines[100 * i : 100 * (i + 1)])
        ).batches()
        offline.add(EventBatch(int(i == 3), batch.events, [], 0))
        assert i < 5 or max(ticks) == T0 + 1_000 * i
    offline.finish()
    assert max(ticks) == T0 + 30_000


def test_the_collector_is_as_before(tmp_path: Path) -> None:
    import gc

    before = gc.get_threshold()
    with infrequent_gc():
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before


def test_the_key_file_is_the_key(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    content = text(300)
    (tmp_path / "in.jsonl").write_bytes(content)
    out = tmp_path / "out.jsonl"
    assert run_replay(tmp_path, "--snapshots", out) == 0
    found = snapshots(
        settings, content, key=NoiseKey(read_key(settings.worker.key_file))
    )
    assert out.read_bytes() == b"".join(snapshot.value + b"\n" for snapshot in found)


def test_users_may_be_protected_for_an_epoch_and_for_ever_side_by_side(
    tmp_path: Path,
) -> None:
    """Both histograms have ticks that end together; which of them comes first must not need a comparison of 64 with no end."""
    start = Bare("2026-01-01T00:00:00Z")
    of_user: dict[str, Any] = {"start": start, "max_items_per_user": 2}
    histograms = [
        unk("of_epoch", **of_user),
        unk("of_ever", horizon="unbounded", **of_user),
    ]
    settings = settings_of(tmp_path, histograms, user="who")
    some = [
        {"key": "s1", "items": ["a"], "who": f"u{i}", "ts": T0 + 100 * i}
        for i in range(100)
    ]
    found = snapshots(settings, text_of(some))
    assert {made.topic for made in found} == {"w.of_epoch", "w.of_ever"}
    assert [made.end_ms for made in found] == sorted(made.end_ms for made in found)
