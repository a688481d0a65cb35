"""A snapshot's JSON, as the worker wrote it, from its rows of `TICKS` and `ITEMS`.

The tables have all that a snapshot says (decision 43), and JSON has one form: the worker's order of
fields, and the shortest digits of a double. So what was signed of a message can be checked in a
copy that has only rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

# Fields of a snapshot's head, where column and field have one name.
_HEAD = ("histogram", "key", "epoch", "tick", "start", "end")
# Those of its guarantee: of all, and of users without epochs only.
_PROMISE = ("unit", "rho", "epsilon", "delta")
_PERIODS = ("period", "overlap")
# Those of its field `sum`.
_RANGE = ("from", "to", "step")

#: Label, count, and sum, mean, its low and high end, each of which may be None.
ItemRow = tuple[str, int, float | None, float | None, float | None, float | None]


def one_page(tick: Mapping[str, Any], items: Sequence[ItemRow]) -> bytes:
    """Return a snapshot's JSON as one page, with its fields in the worker's order.

    `tick` is its row of `TICKS`, with lists as such; `items` are its rows of `ITEMS`. The order of
    the statements is that of the fields.
    """
    fields: dict[str, Any] = {name: tick[name] for name in _HEAD}
    if tick["window_ms"] is not None:
        fields["window"] = {"ms": tick["window_ms"], "from": tick["window_from"]}
        if tick["window_counts"] is not None:
            fields["window"]["counts"] = tick["window_counts"]
    # Fields without a column. One of them, what a histogram of numbers is for, comes later.
    rest = {} if tick["rest"] is None else orjson.loads(tick["rest"])
    purpose = {"for": rest.pop("for")} if "for" in rest else {}
    fields |= rest
    if tick["shown"] is not None:
        # The largest count first, equal ones by label. A row is label and count, and then the sum,
        # the mean and its interval.
        ordered = sorted(items, key=lambda row: (-row[1], row[0]))
        fields["items"] = [row[:2] for row in ordered]
        if tick["sum_from"] is not None:
            fields["sums"] = [row[2:] for row in ordered]
            fields["sum"] = {
                **{name: _number(tick[f"sum_{name}"]) for name in _RANGE},
                "sd": tick["sum_sd"],
            }
    if tick["edges"]:
        fields["edges"] = tick["edges"]
    fields |= purpose
    if tick["all_items"] is not None:
        fields["all_items"] = {
            "count": tick["all_items"],
            "sd": tick["all_items_sd"],
        }
    if tick["quantiles"]:
        fields["quantiles"] = tick["quantiles"]
    fields["sd"] = tick["sd"]
    fields["threshold"] = tick["threshold"]
    if tick["windows"]:
        fields["windows"] = [
            {name: value for name, value in window.items() if value is not None}
            for window in tick["windows"]
        ]
    fields["guarantee"] = {name: tick[name] for name in _PROMISE}
    if tick["period"] is not None:
        fields["guarantee"] |= {name: tick[name] for name in _PERIODS}
    fields["mechanism"] = tick["mechanism"]
    fields["id"] = tick["id"]
    if tick["previous_id"] is not None:
        fields["previous_id"] = tick["previous_id"]
    return orjson.dumps({**fields, "page": 1, "pages": 1})


def _number(value: float) -> int | float:
    """Return a number from a column of doubles as the worker writes it: 5, not 5.0."""
    return int(value) if value.is_integer() else value
