"""General JSON reader: decodes one record to plain objects that contain the wanted fields.

msgspec decodes along the tree of wanted paths. A record of another shape is decoded completely, so
that the reject can say what is wrong with it. Skipped values are checked less: an unwanted string
may hold invalid UTF-8, and an unwanted integer more digits than Python reads (4,300). In decoded
values both are "not JSON", as is an unpaired surrogate escape everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypedDict

import msgspec

from workers.events.tree import Node
from workers.runtime.frozen import Frozen

# Beyond the range of a float, yet small enough that the integer stays short: without a limit, ten
# bytes of JSON would fill the memory.
EXPONENT_MAX = 400


class JsonDecoder(Frozen):
    """Decodes one record at a time; shared by all threads of a worker."""

    def __init__(self, root: Node) -> None:
        wanted: Any = msgspec.json.Decoder(_type(root), float_hook=decimal)
        anything: Any = msgspec.json.Decoder(float_hook=decimal)
        self._wanted: Callable[[bytes], Any] = wanted.decode
        self._anything: Callable[[bytes], Any] = anything.decode

    def decode(self, value: bytes) -> object:
        """Return a record as dict, list, str, int, bool and None, with `decimal` for other numbers.

        Unwanted fields are left out, unless the record has another shape. The last value of a
        repeated name wins. The caller must have checked the nesting. Raises ValueError("not JSON").
        """
        try:
            return self._wanted(value)
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
            return self.whole(value)

    def whole(self, value: bytes) -> object:
        """As `decode`, with every field of the record."""
        try:
            return self._anything(value)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None


def decimal(text: str) -> Decimal | float:
    """Return a number exactly as written; beyond EXPONENT_MAX, as a float, 0 or infinite."""
    try:
        found = Decimal(text)
    except ArithmeticError:  # an exponent of many digits
        return float(text)
    return found if abs(found.adjusted()) <= EXPONENT_MAX else float(text)


def _type(node: Node) -> Any:
    if node.many or (node.children and node.elements is not None):
        return Any
    if node.elements is not None:
        return list[_type(node.elements)] | None  # type: ignore[misc]
    if node.children:
        if not all(map(str.isascii, node.children)):
            # msgspec does not find names beyond ASCII in a TypedDict (its #1126; so in 0.22).
            return dict[str, Any] | None
        fields = {name: _type(child) for name, child in node.children.items()}
        made: Any = TypedDict
        return made("Wanted", fields, total=False) | None
    return Any
