"""Every mechanism name with its options that change results, small enough for many whole epochs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from unittest.mock import patch

from tests.mechanisms.small import SMALL
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build

TICKS = 13
DOMAIN = ("a", "b", "c", "d", "e", "f")
OTHERS = ("x", "y", "z")
START = datetime(2026, 1, 1, tzinfo=UTC)
# Ticks of a millisecond from 2026 on would outgrow the counters before 2100.
_LATE = datetime(2070, 1, 1, tzinfo=UTC)

# Every release depends on its own tick alone.
PER_TICK = (
    *("known_gauss", "known_gumbel", "unk_gauss", "limit_dom"),
    *("limit_dom_laplace", "positive_laplace", "positive_gauss", "misra_gries_tick"),
)
# They answer from running column sums.
MAXIMA = ("bounded_max", "doubling", "two_level", "two_level_k")

_SUM: dict[str, object] = {
    "sum": parse_sum(
        {"field": "price", "from": -2, "to": 4.5, "step": 0.5, "share": 0.6}
    )
}
_COMMON = SMALL | {"horizon": TICKS, "max_items": 2, "max_count": 3, "epsilon": 8.0}
_UNBOUNDED: dict[str, object] = {"horizon": "unbounded", "start": _LATE}
_NEVER: dict[str, object] = {"horizon": "never", "start": _LATE, "windows": (3, 7)}
_USER: dict[str, object] = {"max_items": 1, "max_items_per_user": 3, "max_count": 1}
_COUNTS: dict[str, object] = _USER | {"max_count": 3}
_PERIODS: dict[str, object] = _NEVER | _COUNTS | {"user_period": TICKS}
_UNIQUE: dict[str, object] = (
    _NEVER | _USER | {"unique_users": True, "user_period": 4, "windows": (5, 4)}
)


@dataclass(frozen=True)
class Variant:
    mechanism: str
    label: str
    options: Mapping[str, object]
    unit: str = "event"

    def __str__(self) -> str:
        return f"{self.mechanism}-{self.label}" if self.label else self.mechanism

    def __hash__(self) -> int:
        return hash(str(self))

    def build(self, **changes: object) -> Mechanism:
        # checked by the record itself
        options: Any = _COMMON | dict(self.options) | changes
        # Buckets have the labels of all other variants, so that they count the same streams.
        with patch.object(Buckets, "labels", property(lambda _: DOMAIN)):
            return build(MECHANISMS[self.mechanism](**options), self.unit)

    @property
    def period(self) -> int:
        """Return how many ticks of one user are protected together."""
        found = self.options.get("user_period", TICKS)
        assert isinstance(found, int)
        return found

    @property
    def unique_users(self) -> bool:
        return "unique_users" in self.options

    @property
    def max_items(self) -> int:
        options: Any = _COMMON | dict(self.options)
        return int(options.get("max_items_per_user") or options["max_items"])

    @property
    def max_count(self) -> int:
        options: Any = _COMMON | dict(self.options)
        return int(options["max_count"])


def _of(
    mechanism: str, base: dict[str, object], **variants: dict[str, object]
) -> list[Variant]:
    found = []
    for label, options in variants.items():
        unit = "user" if "max_items_per_user" in options else "event"
        found.append(Variant(mechanism, label, base | options, unit))
    return found


_KNOWN: dict[str, object] = {"domain": DOMAIN}
_BUCKETS = Buckets((0, 1, 2, 3, 4))
_RANKS: dict[str, object] = {
    "domain": DOMAIN,
    "buckets": _BUCKETS,
    "for_": "quantiles",
}
_TREE: dict[str, object] = {"counter": "tree", "radix": 3}
_END: dict[str, object] = {"end_share": 0.6}
_PURE: dict[str, object] = {"accounting": "pure"}
_SPARSE = _KNOWN | {"top_k": 1, "switches": 2, "max_items": 3, "eta": 20}
_PAY: dict[str, object] = {"k": 2, "labels": 8, "queries": 5, "every": 2}
_SEVERAL = _KNOWN | {"queries": ("max", "quantile:0.5", "min", "top_k_select:2")}

VARIANTS = [
    *_of(
        "known_base",
        _KNOWN,
        lifted={},
        tree=_TREE,
        sqrt={"counter": "sqrt"},
        lifted_unbounded=_UNBOUNDED,
        tree_unbounded=_UNBOUNDED | {"counter": "tree"},
        user=_USER,
        user_counts=_COUNTS,
        end_user_counts=_COUNTS | _END,
        sum=_SUM | {"max_count": 1},
        never=_NEVER,
        never_sum=_NEVER | _SUM,
        never_user=_PERIODS,
        never_unique=_UNIQUE,
        ranks=_RANKS,
        ranks_user=_RANKS | _COUNTS | _END,
        ranks_never=_RANKS | _NEVER | {"windows": (3, 7)},
    ),
    *_of(
        "unk_base",
        {},
        end=_END,
        per_tick={},
        constant={"threshold": "constant"},
        every={"threshold": "every", "every": 4},
        tree=_TREE,
        unbounded=_UNBOUNDED,
        tree_unbounded=_UNBOUNDED | {"counter": "tree"},
        user=_USER,
        user_counts=_COUNTS,
        total={"total_share": 0.2},
        total_user=_COUNTS | {"total_share": 0.2},
        sum_user=_COUNTS | _SUM | {"total_share": 0.1},
        sum_tree=_SUM | _TREE | {"total_share": 0.1},
        never=_NEVER | {"windows": (5,)},
        never_hop=_NEVER | {"windows": (9, 4), "hop": 4},
        never_sum=_NEVER | _SUM | {"total_share": 0.1},
        never_user=_PERIODS | {"total_share": 0.1},
        never_unique=_UNIQUE,
    ),
    *_of(
        "meta",
        {"radix": 3},
        known_gauss=_KNOWN | {"algorithm": "known_gauss"},
        known_gumbel=_KNOWN | {"algorithm": "known_gumbel", "k": 2},
        positive_laplace={"algorithm": "positive_laplace"},
        positive_gauss={"algorithm": "positive_gauss"},
        unk_gauss={"algorithm": "unk_gauss", "kbar": 3},
        limit_dom_laplace={"algorithm": "limit_dom_laplace", "kbar": 3},
        limit_dom={"algorithm": "limit_dom", "kbar": 3, "k": 2},
        pmg={"algorithm": "pmg", "size": 4},
        gshm={"algorithm": "gshm", "size": 4, "max_count": 1},
        pure=_KNOWN | {"algorithm": "pure", "size": 4},
        user=_USER | {"algorithm": "positive_gauss"},
        user_counts=_COUNTS | {"algorithm": "positive_laplace"},
    ),
    *_of(
        "sparse_gumb",
        _SPARSE,
        tight={},
        paper={"accounting": "paper"},
        tree=_TREE,
        sqrt={"counter": "sqrt"},
        unbounded=_UNBOUNDED,
        two={"top_k": 2},
        end=_END,
    ),
    *_of(
        "bounded_max",
        _KNOWN | {"c_max": 2000},
        lifted={},
        tree=_TREE,
        pure=_PURE,
        quantile={"query": "quantile:0.5"},
    ),
    *_of("doubling", _KNOWN, zcdp={}, pure=_PURE),
    *_of("two_level", _KNOWN, lifted={"query": "argmax"}, tree=_TREE, pure=_PURE),
    *_of(
        "two_level_k",
        _SEVERAL,
        lifted={},
        tree=_TREE,
        pure=_PURE,
        histogram={"queries": ("histogram",)},
    ),
    *_of(
        "misra_gries",
        {"size": 4, "radix": 3},
        pmg={"release": "pmg"},
        pmg_laplace={"release": "pmg_laplace"},
        merge={"release": "merge"},
        pamg={"release": "pamg", "max_count": 1},
        one={"release": "pmg", "max_items": 1, "max_count": 1},
        pure=_KNOWN | {"release": "pure"},
        pure_one=_KNOWN | {"release": "pure", "max_items": 1},
    ),
    *_of(
        "misra_gries_tick",
        {"size": 4},
        pmg={"release": "pmg"},
        one={"release": "pmg", "max_items": 1, "max_count": 1, "epsilon": 1.0},
        gshm={"release": "gshm", "max_count": 1},
        pamg={"release": "pamg", "max_count": 1},
        pure=_KNOWN | {"release": "pure"},
    ),
    *_of("known_laplace", _KNOWN, **{"": {}}, tree=_TREE, user=_USER, counts=_COUNTS),
    *_of("known_gauss", _KNOWN, **{"": {}}, user=_USER, user_counts=_COUNTS),
    *_of("known_gumbel", _KNOWN | {"k": 2}, **{"": {}}),
    *_of("positive_gauss", {}, **{"": {}}, user=_USER, user_counts=_COUNTS),
    *_of("positive_laplace", {}, **{"": {}}, user=_USER, user_counts=_COUNTS),
    *_of("unk_gauss", {"kbar": 3}, **{"": {}}),
    *_of("limit_dom_laplace", {"kbar": 3}, **{"": {}}),
    *_of(
        "limit_dom",
        {"k": 2},
        given={"kbar": 3},
        private={"kbar": "private", "kbar_max": 5},
    ),
    *_of(
        "pay_what_you_get",
        _PAY,
        given={"kbar": 3},
        private={"kbar": "private", "kbar_max": 5, "labels": 12},
    ),
]


#: The last variant of each mechanism and algorithm: for controls that look at what is not in the options.
ONE_OF_EACH = tuple(
    {
        (
            one.mechanism,
            one.options.get("algorithm"),
            "windows" in one.options,
            one.unique_users,
        ): one
        for one in VARIANTS
    }.values()
)


def named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if str(variant) == name)


@cache
def built(variant: Variant) -> Mechanism:
    """Return the mechanism, cached because its tables take time."""
    return variant.build()
