"""The general reader of JSON: one record to plain objects, of which the wanted fields are there.

msgspec decodes along the tree of wanted paths and skips what nobody wants. Where a record has
another shape than the paths say, it is decoded whole, so that one can say what is wrong with it.

It looks less closely at what it skips: a string that nobody wants may hold invalid UTF-8, and a
whole number have more digits than Python reads (4,300). In what is decoded both are "not JSON".
Half a surrogate pair in an escape is that everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypedDict

import msgspec

from workers.events.tree import Node
from workers.runtime.frozen import Frozen

# Beyond what a float holds, and near enough that a whole number made of it is short.
EXPONENT_MAX = 400


class JsonDecoder(Frozen):
    """Decodes one record at a time; all threads of a worker share it."""

    def __init__(self, root: Node) -> None:
        """
        Args:
            root: what is wanted of a record.
        """
        wanted: Any = msgspec.json.Decoder(_type(root), float_hook=decimal)
        anything: Any = msgspec.json.Decoder(float_hook=decimal)
        self._wanted: Callable[[bytes], Any] = wanted.decode
        self._anything: Callable[[bytes], Any] = anything.decode

    def decode(self, value: bytes) -> object:
        """Return what a record holds: dict, list, str, int, bool, None, and `decimal` of a number
        with a point or an exponent. Of objects on the way to wanted fields only those are there,
        unless the record has another shape; of a name that occurs twice, the last.

        Args:
            value: the record, with as few lists and objects in each other as its reader allows.

        Raises:
            ValueError: it is "not JSON".
        """
        try:
            return self._wanted(value)
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
            return self.whole(value)

    def whole(self, value: bytes) -> object:
        """Return what `decode` does, with every field that the record has."""
        try:
            return self._anything(value)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None


def decimal(text: str) -> Decimal | float:
    """Return a number with a point or an exponent exactly as it is written.

    One with an exponent beyond EXPONENT_MAX comes as a float, which is 0 or infinite: as a whole
    number, ten bytes of JSON would fill the memory.
    """
    try:
        found = Decimal(text)
    except ArithmeticError:  # an exponent of many digits
        return float(text)
    return found if abs(found.adjusted()) <= EXPONENT_MAX else float(text)


def _type(node: Node) -> Any:
    """Return the type by which msgspec decodes what is at a node."""
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
