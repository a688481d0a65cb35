"""The windows of a histogram: what they become, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.settings.test_settings import GOOD, assert_refused, changed, loaded, refusal
from workers.mechanisms.registry import MECHANISMS
from workers.replay.backtest.grid import make_grid, settings_text
from workers.runtime.errors import SettingsError

TREE = 'counter = "tree"\n'
#: What each other mechanism needs beside the settings of the good file.
OTHERS = {
    "meta": 'algorithm = "unk_gauss"\nkbar = 3\n' + TREE,
    "misra_gries": "size = 8\n" + TREE,
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
REFUSALS = [
    (GOOD + 'windows = ["15s"]\n', "windows holds 15000 ms: a multiple of the tick, 10000 ms"),
    (GOOD + 'windows = ["2d"]\n', "windows holds 172800000 ms: at most the epoch, 86400000 ms"),
    (
        GOOD + 'windows = ["60s", "1m"]\n',
        "windows holds 60000 ms more than once: every one only once",
    ),
    (
        GOOD + 'windows = ["1 hour"]\n',
        'windows = ["1 hour"]: a list of at most 20 durations from 1ms to 366d: a whole',
    ),
    (GOOD + "windows = [60]\n", "windows = [60]: a list of at most 20 durations"),
    (GOOD + 'windows = "1m"\n', "windows = 60000 ms: a list of at most 20 durations"),
    (GOOD + 'windows = ["0s"]\n', "windows = [0] ms: a list of at most 20 durations from 1ms"),
    (
        GOOD + f"windows = {[f'{10 * i}s' for i in range(1, 22)]}\n",
        "a list of at most 20 durations",
    ),
    (
        GOOD.replace("horizon = 8640", 'horizon = "unbounded"\nstart = 2026-01-01T00:00:00Z')
        + 'windows = ["367d"]\n',
        "a list of at most 20 durations from 1ms to 366d",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSALS)
def test_what_is_wrong_is_named_with_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    """One line, from which an operator can mend the file."""
    assert_refused(tmp_path, text, f"histogram 'products': ... {said}")


def test_windows_are_multiples_of_the_tick_up_to_the_epoch(tmp_path: Path) -> None:
    """In the order given; none where none are named, and an empty list is none."""
    [found] = loaded(tmp_path, GOOD + 'windows = ["1h", "10s", "1d"]\n').histograms
    assert found.windows == (3_600_000, 10_000, 86_400_000)
    for more in ("", "windows = []\n"):
        assert loaded(tmp_path, GOOD + more).histograms[0].windows == ()


@pytest.mark.parametrize("mechanism", OTHERS)
def test_mechanisms_whose_counts_lack_more_than_noise_refuse_them(
    tmp_path: Path, mechanism: str
) -> None:
    """A bar from the noise alone would be no bar; and a setting that does nothing is a lie."""
    text = changed('"unk_base"', f'"{mechanism}"') + OTHERS[mechanism]
    loaded(tmp_path, text)
    message = refusal(tmp_path, text + 'windows = ["1h"]\n')
    assert message == (
        f"histogram 'products': windows is set: mechanism = \"{mechanism}\" has no counts whose changes could be reported; these have: "
        'known_base, unk_base, sparse_gumb, or meta with algorithm = "known_gauss"'
    )


def test_every_mechanism_has_windows_or_refuses_them() -> None:
    """A new one must be in one of the two lists."""
    assert set(OTHERS) | {"known_base", "unk_base", "sparse_gumb"} == set(MECHANISMS)


def test_a_backtest_does_not_vary_them_and_leaves_them_out_of_what_it_names(tmp_path: Path) -> None:
    """They change nothing that is measured."""
    found = loaded(tmp_path, GOOD + 'windows = ["1h"]\n')
    assert "windows" not in settings_text(found.histograms[0])
    with pytest.raises(
        SettingsError, match="windows cannot be varied: it changes nothing that is measured"
    ):
        make_grid(found, tmp_path / "orders.toml", ["windows=1h,2h"])
