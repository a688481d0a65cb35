"""The JSON Schema of snapshots: `snapshot.schema.json`, with the mechanisms that it applies to.

In that file, an `enum` of mechanisms is written as the name of a group, such as "windows". Here it
is replaced by the mechanisms in the group, which `_GROUPS` decides from what every mechanism
declares about itself (`about`). A new mechanism so joins the groups by itself.
"""

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS

Kind = type[HistogramConfig]


def _counts(kind: Kind) -> bool:
    """Return whether a mechanism publishes counts, rather than answers or labels."""
    return kind.about.family in ("running", "tick")


def _statistic(kind: Kind, setting: str) -> bool:
    """Return whether a mechanism answers queries about ranks, configured by this `setting`."""
    return kind.about.family == "statistic" and setting in kind.__struct_fields__


# Whether a mechanism belongs to a group, by the name that `snapshot.schema.json` has for it.
_GROUPS: Mapping[str, Callable[[Kind], bool]] = MappingProxyType(
    {
        "every": lambda kind: True,
        "without labels to declare": lambda kind: (
            "domain" not in kind.__struct_fields__
        ),
        "split": lambda kind: kind.about.per_item,
        "without epochs": lambda kind: kind.about.takes_horizon_never,
        "windows": lambda kind: bool(kind.about.subtracts or kind.about.subtracts_with),
        "quantiles": lambda kind: bool(
            kind.about.has_quantiles or kind.about.subtracts_with
        ),
        "counts, no threshold": lambda kind: (
            _counts(kind) and kind.about.threshold_rule is None
        ),
        "counts, threshold of running counts": lambda kind: (
            kind.about.threshold_rule in ("once", "block")
        ),
        "counts, threshold at every tick": lambda kind: (
            kind.about.threshold_rule in ("each", "bar")
        ),
        "one query": lambda kind: _statistic(kind, "query"),
        "several queries": lambda kind: _statistic(kind, "queries"),
        "labels for a budget": lambda kind: kind.about.family == "labels",
    }
)


def snapshot_schema() -> dict[str, Any]:
    """Return the schema (2020-12) that the value of every record of a histogram topic satisfies."""
    text = files("workers.client").joinpath("snapshot.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text, object_hook=_with_names)
    return schema


def _with_names(value: dict[str, Any]) -> dict[str, Any]:
    """Return a parsed JSON object; if its `enum` is the name of a group, with the mechanisms in it.

    It is called for every object of the file, innermost first.
    """
    group = value.get("enum")
    if not isinstance(group, str):
        return value
    names = [name for name, kind in MECHANISMS.items() if _GROUPS[group](kind)]
    return value | {"enum": names}
