"""Which events have the items at all, where a field such as a type decides that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from workers.guessing import names
from workers.guessing.fields import Field, Form
from workers.shapes.conditions import as_label

_NEARLY_ALL = 0.99
_TYPES_MAX = 20
# Of the records of a type this share has the items, or at most the rest.
_DECIDED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Where:
    """A condition: the field, and the values that events with items have. The values are data."""

    field: Field
    values: tuple[str, ...]
    others: int


def where_of(fields: Sequence[Field], having: Collection[int]) -> Where | None:
    """Return the condition that tells records with items from those without; None: there is none.

    Args:
        fields: of the sampled records.
        having: places of the records that have items.
    """
    having, found = set(having), []
    for field in fields:
        if field.form is not Form.ONE or not field.labels or field.share < _NEARLY_ALL:
            continue
        if not 2 <= field.distinct <= _TYPES_MAX or names.who(field.path) is not None:
            continue
        all_of: Counter[str] = Counter()
        with_items: Counter[str] = Counter()
        for place, value in field.column.items():
            if isinstance(value, str | int):
                all_of[as_label(value)] += 1
                with_items[as_label(value)] += place in having
        shares = {value: with_items[value] / n for value, n in all_of.items()}
        wanted = tuple(sorted(value for value, share in shares.items() if share >= _DECIDED))
        decided = all(share >= _DECIDED or share <= 1 - _DECIDED for share in shares.values())
        if decided and wanted and len(wanted) < len(shares):
            found.append(Where(field=field, values=wanted, others=len(shares) - len(wanted)))
    found.sort(key=lambda where: (not names.says(where.field.path, names.TYPE), len(where.field.path.steps), str(where.field.path)))
    return found[0] if found else None
