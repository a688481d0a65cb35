"""Windows, buckets and quantiles of a histogram: what they become, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from tests.settings.test_settings import GOOD, assert_refused, changed, loaded, refusal
from workers.mechanisms.config.histogram import names_of
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import KnownBaseConfig
from workers.pipeline.factory import mechanisms
from workers.replay.backtest.grid import make_grid, settings_text
from workers.runtime.errors import SettingsError

PER_ITEM = tuple(names_of(lambda about: about.per_item))
SUBTRACTING = tuple(names_of(lambda about: about.subtracts))


def with_buckets(buckets: str) -> str:
    return changed('"unk_base"', '"known_base"') + f"buckets = {buckets}\n"


TREE = 'counter = "tree"\n'
#: What each other mechanism needs beside the settings of the good file.
OTHERS = {
    "meta": 'algorithm = "unk_gauss"\nkbar = 3\n' + TREE,
    "misra_gries": "size = 8\n" + TREE,
    "misra_gries_tick": "size = 8\n",
    "bounded_max": 'domain = ["a", "b"]\nc_max = 100\n',
    "doubling": 'domain = ["a", "b"]\n',
    "two_level": 'domain = ["a", "b"]\n',
    "two_level_k": 'domain = ["a", "b"]\nqueries = ["histogram"]\n',
    "known_gauss": 'domain = ["a", "b"]\n',
    "known_gumbel": 'domain = ["a", "b", "c"]\nk = 2\n',
    "unk_gauss": "kbar = 3\n",
    "limit_dom": "k = 2\nkbar = 5\n",
    "limit_dom_laplace": "kbar = 3\n",
    "positive_laplace": "",
    "positive_gauss": "",
    "pay_what_you_get": "k = 2\nkbar = 5\nlabels = 9\nqueries = 5\n",
}
SUM = 'sum = { field = "price", from = 0, to = 100, step = 0.01 }\n'
#: What is added to the good file, and what is said about it.
ADDED = [
    ('windows = ["15s"]\n', "windows holds 15000 ms: a multiple of the tick, 10000 ms"),
    (
        'windows = ["2d"]\n',
        "windows holds 172800000 ms: at most the epoch, 86400000 ms",
    ),
    ('windows = ["60s", "1m"]\n', "windows holds 60000 ms more than once: every one"),
    (
        'windows = ["1 hour"]\n',
        'windows = ["1 hour"]: a list of at most 20 durations from 1ms to 366d: a whole',
    ),
    ("windows = [60]\n", "windows = [60]: a list of at most 20 durations"),
    ('windows = "1m"\n', "windows = 60000 ms: a list of at most 20 durations"),
    ('windows = ["0s"]\n', "windows = [0] ms: a list of at most 20 durations from 1ms"),
    (f"windows = {[f'{10 * i}s' for i in range(1, 22)]}\n", "at most 20 durations"),
    ("buckets = [0, 10]\n", 'buckets is set ... "unk_base" has no declared domain'),
    ("quantiles = [0.5]\n", "quantiles = [0.5]: only with buckets"),
    ('unit = "ms"\n', 'unit = "ms": only with buckets'),
    ("split = 0\n", "split = 0: a whole number from 1 to 10,000"),
    ("sum = 3\n", 'sum = 3: a field and its range, such as { field = "price"'),
    (SUM.replace("0.01", "0.03"), "sum.step = 0.03: to - from must be a whole number"),
    (
        SUM + "max_count = 101\n",
        "max_count = 101: with 10,000 steps of sum at most 100",
    ),
    (
        SUM.replace("price", "lines[].price"),
        "in the same list as items = ... or without []",
    ),
    (SUM.replace("price", "products"), 'sum.field = "products": must be a field other'),
    (SUM.replace("price", "a..b"), 'sum.field = "a..b": at character 3'),
    ("total_share = 1\n", "total_share = 1: a number from 0.01 to 0.9"),
    (
        SUM.replace(" }", ", share = 0.9 }") + "total_share = 0.1\n",
        "total_share = 0.1: with sum.share = 0.9 at most 0.95",
    ),
    ("split = 2\ntotal_share = 0.1\n", "total_share = 0.1: only with split = 1"),
]
BUCKETS = [
    ("[10, 0]", "buckets = [10, 0]: 0 at place 2 is not above 10"),
    ("[10]", "buckets = [10]: 1 given ... 2 to 4,095 numbers"),
    ('[0, "a"]', 'buckets = [0, "a"]: the edge at place 2 is no number'),
    ("[0, inf]", "inf is not an edge ... finite"),
    (
        '{ from = 0, to = 9, count = 3, scale = "log" }',
        'from = 0: above 0 with scale = "log"',
    ),
    ('"10"', 'buckets = "10": a list of 2 to 4,095 ... { from = 0, to = 500'),
]
REFUSALS = [
    *((GOOD + added, said) for added, said in ADDED),
    *((with_buckets(buckets), said) for buckets, said in BUCKETS),
    (
        with_buckets("[0, 10]") + 'domain = ["a"]\n',
        "domain_file ... buckets ... exactly one",
    ),
    (
        with_buckets("[0, 10]") + "quantiles = [1.0]\n",
        "quantiles = [1.0] ... above 0 and below 1",
    ),
    (with_buckets("[0, 10]") + "quantiles = [0.5, 0.5]\n", "every one only once"),
    (
        with_buckets("[0, 10]").replace('"known_base"', '"known_gumbel"')
        + "k = 2\nquantiles = [0.5]\n",
        "quantiles = [0.5]: needs a mechanism that shows every bucket at every tick, with Gaussian noise: known_base, known_gauss",
    ),
    (
        # It shows every bucket at every tick, but its noise is not Gaussian.
        with_buckets("[0, 10]").replace('"known_base"', '"known_laplace"')
        + TREE
        + "quantiles = [0.5]\n",
        "quantiles = [0.5]: needs a mechanism that shows every bucket at every tick, with Gaussian noise: known_base, known_gauss",
    ),
    (with_buckets("[0, 10]") + "split = 2\n", "split = 2: not with buckets"),
    (
        GOOD.replace("[worker]\n", "[worker]\nowner_partitions = 3\n") + "split = 4\n",
        "split = 4: at most the number of owner partitions, 3",
    ),
    (
        GOOD.replace('"unk_base"', '"positive_gauss"') + SUM,
        "sum is set: only in known_base and unk",
    ),
    (
        GOOD.replace('"unk_base"', '"positive_gauss"') + "total_share = 0.1\n",
        "total_share = 0.1: only in unk_base",
    ),
    (
        GOOD.replace(
            "horizon = 8640", 'horizon = "unbounded"\nstart = 2026-01-01T00:00:00Z'
        )
        + 'windows = ["367d"]\n',
        "a list of at most 20 durations from 1ms to 366d",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSALS)
def test_what_is_wrong_is_named_with_what_is_allowed(
    tmp_path: Path, text: str, said: str
) -> None:
    assert_refused(tmp_path, text, f"histogram 'products': ... {said}")


def test_windows_are_multiples_of_the_tick_up_to_the_epoch(tmp_path: Path) -> None:
    [found] = loaded(tmp_path, GOOD + 'windows = ["1h", "10s", "1d"]\n').histograms
    assert found.windows == (3_600_000, 10_000, 86_400_000)
    for more in ("", "windows = []\n"):
        assert loaded(tmp_path, GOOD + more).histograms[0].windows == ()


def test_a_step_far_below_the_noise_is_refused_with_what_helps(tmp_path: Path) -> None:
    given = loaded(tmp_path, GOOD.replace("epsilon = 1.0", "epsilon = 0.001") + SUM)
    with pytest.raises(
        SettingsError, match=r"'products': sum.step = 0.01: .* take a larger step"
    ):
        mechanisms(given)


@pytest.mark.parametrize("mechanism", OTHERS)
def test_other_mechanisms_refuse_windows(tmp_path: Path, mechanism: str) -> None:
    text = changed('"unk_base"', f'"{mechanism}"') + OTHERS[mechanism]
    loaded(tmp_path, text)
    message = refusal(tmp_path, text + 'windows = ["1h"]\n')
    assert message == (
        f"histogram 'products': windows is set: mechanism = \"{mechanism}\" has no counts whose changes could be reported; these have: "
        f'{", ".join(SUBTRACTING)}, or meta with algorithm = "known_gauss"'
    )


@pytest.mark.parametrize("mechanism", OTHERS)
def test_what_has_anything_for_a_whole_stream_key_refuses_to_be_split(
    tmp_path: Path, mechanism: str
) -> None:
    text = changed('"unk_base"', f'"{mechanism}"') + OTHERS[mechanism] + "split = 2\n"
    if mechanism in PER_ITEM:
        assert loaded(tmp_path, text).histograms[0].lane.split == 2
        return
    assert refusal(tmp_path, text) == (
        "histogram 'products': split = 2: needs a mechanism that treats items one by one: "
        + ", ".join(PER_ITEM)
    )


def test_every_mechanism_has_windows_or_refuses_them() -> None:
    assert set(OTHERS) | set(SUBTRACTING) == set(MECHANISMS)


def test_a_backtest_does_not_vary_them_and_leaves_them_out_of_what_it_names(
    tmp_path: Path,
) -> None:
    """They change nothing that is measured."""
    found = loaded(tmp_path, GOOD + 'windows = ["1h"]\n')
    assert "windows" not in settings_text(found.histograms[0])
    message = "windows cannot be varied: it changes nothing that is measured"
    with pytest.raises(SettingsError, match=message):
        make_grid(found, tmp_path / "orders.toml", ["windows=1h,2h"])


def test_a_label_and_a_unit_are_no_part_of_the_mechanism(tmp_path: Path) -> None:
    text = with_buckets("[0, 10]")
    plain, named = (
        loaded(tmp_path, one).histograms[0]
        for one in (text, text + 'label = "Age"\nunit = "y"\n')
    )
    assert (named.label, named.unit) == ("Age", "y")
    assert build(named).public() == build(plain).public()
    assert settings_text(named) == settings_text(plain)


def test_buckets_become_a_declared_domain(tmp_path: Path) -> None:
    text = with_buckets("[0, 10, 50.5]") + "quantiles = [0.5, 0.95]\n"
    [found] = loaded(tmp_path, text).histograms
    assert isinstance(found, KnownBaseConfig)
    assert found.domain == ("<0", "[0,10)", "[10,50.5)", ">=50.5")
    assert found.buckets is not None
    assert (found.buckets.edges, found.shown_quantiles) == (
        (0.0, 10.0, 50.5),
        (0.5, 0.95),
    )
    stored = msgspec.json.encode(found)
    assert msgspec.json.decode(stored, type=KnownBaseConfig) == found
    with pytest.raises(msgspec.ValidationError, match="not above"):
        msgspec.json.decode(stored.replace(b"50.5]", b"5.5]"), type=KnownBaseConfig)
    with pytest.raises(msgspec.ValidationError, match="domain: buckets define"):
        msgspec.json.decode(
            stored.replace(b"10.0,50.5]", b"11.0,50.5]"), type=KnownBaseConfig
        )


def test_the_median_is_said_where_nothing_is_asked(tmp_path: Path) -> None:
    known = with_buckets("[0, 10]")
    gumbel = known.replace('"known_base"', '"known_gumbel"') + "k = 2\n"
    texts = (known, known + "quantiles = []\n", gumbel, GOOD)
    shown = [loaded(tmp_path, text).histograms[0].shown_quantiles for text in texts]
    assert shown == [(0.5,), (), (), ()]
