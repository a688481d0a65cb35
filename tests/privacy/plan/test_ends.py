"""`end_share` in `plan`: the mechanisms' own figures, and at most one recommended share."""

import math

import pytest

from tests.privacy.plan.test_figures import planned, said
from tests.privacy.plan.test_noise import LABELS, START, config
from workers.mechanisms.config.histogram import HistogramConfig, KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.privacy.plan.advice import _end, end_choices
from workers.privacy.plan.model import Bucket, EndChoice
from workers.privacy.plan.text import line

pytestmark = pytest.mark.slow


def with_share(own: HistogramConfig, end_share: float | None) -> HistogramConfig:
    """Return a validated configuration, which `structs.replace` would not be."""
    values = {name: getattr(own, name) for name in own.__struct_fields__}
    return type(own)(**(values | {"end_share": end_share}))


def ends_of(own: HistogramConfig) -> tuple[EndChoice, ...]:
    return end_choices(own, build(own), "event")


@pytest.mark.parametrize(
    "own",
    [
        config(UnkBaseConfig, horizon=100),
        config(UnkBaseConfig, horizon=100, end_share=0.55, threshold="every", every=8),
        config(KnownBaseConfig, horizon=64, domain=LABELS, end_share=0.6),
        config(
            MECHANISMS["sparse_gumb"], horizon=9, domain=LABELS, top_k=2, switches=2, epsilon=20.0
        ),
    ],
    ids=["unk_base", "every", "known_base", "sparse_gumb"],
)
def test_each_rows_figures_are_those_of_a_worker_with_that_share(own: HistogramConfig) -> None:
    """Using a row's share must give that row's noise."""
    rows = ends_of(own)
    assert [row.end_share for row in rows if row.chosen] == [own.end_share]
    assert [row.end_share or 0 for row in rows] == sorted(row.end_share or 0 for row in rows)
    last = own.horizon_ticks
    assert last is not None
    for row in rows:
        mechanism = build(with_share(own, row.end_share))
        sds = [mechanism.sd(t) for t in range(1, last + 1)]
        assert row.worst_sd == pytest.approx(max(sds), rel=1e-9)
        rms = math.sqrt(sum(sd * sd for sd in sds) / len(sds))
        assert row.rms_sd == pytest.approx(rms, rel=1e-9)
        assert row.last_sd == sds[-1]
        assert row.last_threshold == mechanism.threshold(last)
        assert row.offset == (0 if row.end_share is None else (1 << (last - 1).bit_length()) - last)
        assert max(run.most for run in row.curve) == pytest.approx(max(sds), rel=1e-9)


@pytest.mark.parametrize(
    ("horizon", "named"), [(8, 0.7), (100, 0.6), (1000, 0.6), (1440, 0.5), (1 << 30, 0.5)]
)
def test_the_share_named_costs_other_ticks_at_most_a_third(horizon: int, named: float) -> None:
    """The documented rule must be the applied one, and the next share must break it."""
    rows = ends_of(config(KnownBaseConfig, domain=LABELS, horizon=horizon))
    assert [row.end_share for row in rows if row.recommended] == [named]
    none = rows[0]
    for row in rows[1:]:
        assert row.end_share is not None
        assert (row.worst_sd <= none.worst_sd * 4 / 3 * (1 + 1e-9)) is (row.end_share <= named)


def test_none_is_named_where_no_share_can_be_had() -> None:
    """A budget at the edge of the noise tables leaves nothing to choose."""
    rows = ends_of(config(KnownBaseConfig, domain=LABELS, horizon=1000, epsilon=None, rho=2.9e-9))
    assert [(row.end_share, row.recommended) for row in rows] == [(None, False)]
    assert not list(_end(rows))


def test_a_share_in_use_is_not_argued_with() -> None:
    """The user chose it: the table shows alternatives, the sentences do not comment."""
    for end_share in (None, 0.3):
        own = config(KnownBaseConfig, domain=LABELS, horizon=100, end_share=end_share)
        plan = planned(own)
        assert plan.ends == ends_of(own)
        assert [row.end_share for row in plan.ends if row.chosen] == [end_share]
        advised = any("end_share = 0.6 " in sentence for sentence in plan.advice)
        assert advised is (end_share is None)
        assert "the end of an epoch" in said(own, plan)


def test_mechanisms_are_compared_with_the_share_in_use() -> None:
    """Otherwise the mechanism without the share would appear less noisy for free."""
    plan = planned(config(UnkBaseConfig, horizon=100, end_share=0.6))
    other = build(config(KnownBaseConfig, horizon=100, end_share=0.6, domain=LABELS))
    row = next(row for row in plan.mechanisms if row.mechanism == "known_base")
    assert row.worst_sd == pytest.approx(max(other.sd(t) for t in range(1, 101)), rel=1e-9)


@pytest.mark.parametrize(
    "own",
    [
        config(UnkBaseConfig, counter="tree"),
        config(UnkBaseConfig, horizon="unbounded", start=START),
        config(UnkBaseConfig, horizon=1),
        config(KnownBaseConfig, domain=LABELS, counter="sqrt"),
        config(MECHANISMS["meta"], algorithm="positive_gauss"),
        config(MECHANISMS["known_gauss"], domain=LABELS),
        config(MECHANISMS["two_level"], domain=LABELS, epsilon=20.0),
    ],
    ids=["tree", "unbounded", "one tick", "sqrt", "meta", "known_gauss", "two_level"],
)
def test_nothing_is_said_where_an_end_share_is_refused(own: HistogramConfig) -> None:
    """Figures of an impossible setting mislead; the setting is refused in one line."""
    assert ends_of(own) == ()
    if own.horizon != 1:
        said = r"end_share = 0\.6: only in known_base, unk_base, sparse_gumb"
        with pytest.raises(ValueError, match=said):
            with_share(own, 0.6)


def test_the_curve_of_a_row_is_one_line_in_any_terminal() -> None:
    """The last column is the last tick's, which the share is for."""
    runs = [Bucket(first=t, last=t, least=4.0, most=8.0) for t in range(1, 64)]
    runs.append(Bucket(first=64, last=64, least=1.0, most=1.0))
    assert line(runs, 8.0, unicode=True) == "█" * 32 + "▁"
    assert line(runs, 8.0, unicode=False) == "9" * 32 + "1"
    assert line(runs[-1:], 8.0, unicode=True) == "▁"
