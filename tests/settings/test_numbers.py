"""The settings of a histogram of numbers: what they become, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.settings.test_settings import GOOD, assert_refused, changed, loaded
from workers.mechanisms.config.histogram import KnownBaseConfig


def with_buckets(buckets: str) -> str:
    return changed('"unk_base"', '"known_base"') + f"buckets = {buckets}\n"


REFUSALS = [
    (
        GOOD + "buckets = [0, 10]\n",
        "'products': buckets is set ... mechanism = \"unk_base\" has no declared domain",
    ),
    (
        with_buckets("[0, 10]") + 'domain = ["a"]\n',
        "domain_file ... domain ... buckets ... exactly one",
    ),
    (with_buckets("[10, 0]"), "buckets = [10, 0]: 0 at place 2 is not above 10"),
    (with_buckets("[10]"), "buckets = [10]: 1 given ... 2 to 1,000 numbers"),
    (with_buckets('[0, "a"]'), 'buckets = [0, "a"]: the edge at place 2 is no number'),
    (with_buckets("[0, inf]"), "inf is no edge ... finite"),
    (
        with_buckets('{ from = 0, to = 9, count = 3, scale = "log" }'),
        'from = 0: above 0 with scale = "log"',
    ),
    (with_buckets('"10"'), 'buckets = "10": a list of 2 to 1,000 ... { from = 0, to = 500'),
    (GOOD + "quantiles = [0.5]\n", "quantiles = [0.5]: only with buckets"),
    (
        with_buckets("[0, 10]") + "quantiles = [1.0]\n",
        "quantiles = [1.0]: a list of at most 20 numbers above 0 and below 1",
    ),
    (with_buckets("[0, 10]") + "quantiles = [0.5, 0.5]\n", "every one only once"),
    (
        with_buckets("[0, 10]").replace('"known_base"', '"known_gumbel"')
        + "k = 2\nquantiles = [0.5]\n",
        "quantiles = [0.5]: needs a mechanism that shows every bucket ... known_base, known_gauss",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSALS)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(
    tmp_path: Path, text: str, said: str
) -> None:
    """One line, from which an operator can mend the file."""
    assert_refused(tmp_path, text, said)


def test_buckets_become_a_declared_domain(tmp_path: Path) -> None:
    """Mechanisms need to know nothing of edges; snapshots say them."""
    [found] = loaded(
        tmp_path, with_buckets("[0, 10, 50.5]") + "quantiles = [0.5, 0.95]\n"
    ).histograms
    assert isinstance(found, KnownBaseConfig)
    assert found.domain == ("<0", "[0,10)", "[10,50.5)", ">=50.5")
    assert found.buckets is not None
    assert (found.buckets.edges, found.shown_quantiles) == ((0.0, 10.0, 50.5), (0.5, 0.95))
    stored = msgspec.json.encode(found)
    assert msgspec.json.decode(stored, type=KnownBaseConfig) == found
    with pytest.raises(msgspec.ValidationError, match="not above"):
        msgspec.json.decode(stored.replace(b"50.5]", b"5.5]"), type=KnownBaseConfig)
    with pytest.raises(msgspec.ValidationError, match="domain: with buckets"):
        msgspec.json.decode(stored.replace(b"10.0,50.5]", b"11.0,50.5]"), type=KnownBaseConfig)


def test_the_median_is_said_where_nothing_is_asked(tmp_path: Path) -> None:
    """With buckets, and where every bucket is shown; an empty list asks for none."""
    known = with_buckets("[0, 10]")
    texts = (
        known,
        known + "quantiles = []\n",
        known.replace('"known_base"', '"known_gumbel"') + "k = 2\n",
        GOOD,
    )
    shown = [loaded(tmp_path, text).histograms[0].shown_quantiles for text in texts]
    assert shown == [(0.5,), (), (), ()]
