"""The table beside DP-SQLP's: what it takes from a replay's snapshots is the whole last tick, and its settings are those of the paper."""

import tomllib

import orjson
import pytest

from bench.sqlp import CANDIDATES, C, _last, settings
from workers.mechanisms.running.base import UnkBaseConfig


def snapshot(tick: int, items: list[list[object]], **pages: int) -> bytes:
    place = {"histogram": "items", "key": "all", "epoch": 1, "tick": tick}
    return orjson.dumps(place | {"items": items} | pages) + b"\n"


def test_the_last_tick_is_put_together_from_all_its_pages_and_no_other_tick() -> None:
    lines = [
        snapshot(10, [["k9", 1]]),
        snapshot(99, [["k8", 2]]),
        snapshot(100, [["k1", 30], ["k2", 20]], page=1, pages=2),
        snapshot(100, [["k3", 10]], page=2, pages=2),
        b"VmHWM:\t  2097152 kB\n",
    ]
    assert _last(lines, 100) == ({"k1": 30, "k2": 20, "k3": 10}, 2048)
    assert _last(lines, 10)[0] == {"k9": 1}
    for short in ([*lines[:3], lines[4]], lines[:2]):
        with pytest.raises(RuntimeError, match="the last tick, 100"):
            _last(short, 100)


def test_the_settings_are_the_papers() -> None:
    """Epsilon 6, delta 1e-9, C = 32: another budget would compare nothing."""
    for end_share in (None, 0.6):
        [section] = tomllib.loads(settings(1_000, C, end_share))["histogram"]
        assert (section["epsilon"], section["delta"], section["horizon"]) == (
            6.0,
            1e-9,
            1_000,
        )
        assert section["max_items_per_user"] == 32
        assert section["max_items_per_user"] in CANDIDATES
        assert section.get("end_share") == end_share
        assert section["mechanism"] == UnkBaseConfig.__struct_config__.tag
