"""Show where a record stops being JSON: the byte at fault, and the text around it."""

import json
import re
from typing import NamedTuple

import msgspec

from workers.events.formats.wire import HEADER
from workers.settings.settings import Settings

NOT_JSON = "not JSON"
# Bytes shown before and after a fault.
_BEFORE = 40
_AFTER = 20
# The form of msgspec's messages.
_BYTE = re.compile(r"(.*) \(byte ([0-9]+)\)")
# UTF-8's byte order mark.
_MARK = b"\xef\xbb\xbf"


class Fault(NamedTuple):
    """What is wrong and where, and the text around it, with `>>>` before the fault."""

    what: str
    context: str


def json_fault(value: bytes) -> Fault | None:
    """Return a record's first fault; None if it is JSON after all.

    Python's reader says best what is wrong; the worker's own, msgspec, is stricter, and is asked
    where Python finds nothing, or NaN or Infinity, which only Python reads (`_refuse`).
    """
    start = len(_MARK) if value.startswith(_MARK) else 0
    try:
        text = value[start:].decode()
    except UnicodeDecodeError as error:
        index = start + error.start
        return _fault(value, index, f"0x{value[index]:02x} is not UTF-8")
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        index = start + len(text[: error.pos].encode())
        # A phrase such as "Invalid \\escape" or "Invalid control character at".
        what = error.msg[:1].lower() + error.msg[1:]
        return _fault(value, index, what.removesuffix(" at").removesuffix(" starting"))
    except RecursionError:
        return _TOO_DEEP
    except ValueError:
        # From `_refuse`, which does not know the place.
        pass
    return _fault_of_msgspec(value, start)


def fault_of(settings: Settings, value: bytes | None) -> Fault | None:
    """Return the fault of a rejected record in JSON, in the bytes after any schema id.

    None if it has no value, or is JSON after all.
    """
    if value is None:
        return None
    framed = settings.events.format == "json_schema"
    return json_fault(value[HEADER:] if framed else value)


_TOO_DEEP = Fault("has lists and objects nested too deeply", "")


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _fault_of_msgspec(value: bytes, start: int) -> Fault | None:
    """Return what msgspec, the worker's reader, refuses; None if nothing, or the place is not said.

    `start` is where the JSON begins, after any byte order mark.
    """
    try:
        msgspec.json.decode(value[start:])
    except msgspec.DecodeError as error:
        found = _BYTE.fullmatch(str(error))
        if found is None:
            return None
        what = found[1].removeprefix("JSON is malformed: ")
        return _fault(value, start + int(found[2]), what)
    except RecursionError:
        return _TOO_DEEP
    return None


def _fault(value: bytes, index: int, what: str) -> Fault:
    """Describe a fault at a byte, with the text around it."""
    begin = _past_character(value, max(index - _BEFORE, 0))
    end = _past_character(value, index + _AFTER)
    before = ("..." if begin > 0 else "") + _text(value[begin:index])
    if index >= len(value):
        return Fault(f"ends too early, at byte {len(value):,}: {what}", f"{before}>>>")
    after = _text(value[index:end]) + ("..." if end < len(value) else "")
    return Fault(f"at byte {index + 1:,}: {what}", f"{before}>>>{after}")


def _past_character(value: bytes, index: int) -> int:
    """Return the first index from `index` on whose byte does not continue a UTF-8 character."""
    while index < len(value) and value[index] & 0xC0 == 0x80:
        index += 1
    return index


def _text(some: bytes) -> str:
    return some.decode(errors="backslashreplace")
