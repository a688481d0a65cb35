"""Reading the parameters of a question, and answering with JSON."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from aiohttp import web
from multidict import MultiMapping

from workers.dashboard.snapshots import Stream

#: Most items that one question may name.
ITEMS = 100
COMPRESS_FROM = 1_024


class Question(ValueError):
    """A query string that cannot be answered; its sender is shown the text."""


def only_known(query: Mapping[str, str], names: set[str]) -> None:
    """Refuse parameters of other names."""
    for name in query:
        if name not in names:
            raise Question(f"{name[:50]}: unknown; one of {', '.join(sorted(names))}")


def one(query: MultiMapping[str], name: str) -> str:
    """Return the value of a parameter that must be there, once."""
    given = query.getall(name, [])
    if len(given) != 1:
        raise Question(f"{name}: only one" if given else f"{name} is missing")
    return given[0]


def number(query: MultiMapping[str], name: str, least: int, most: int) -> int:
    """Return a whole number."""
    text = one(query, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise Question(f"{name}: a whole number from {least:,} to {most:,}")
    return int(text)


def number_or(query: MultiMapping[str], name: str, least: int, most: int) -> int | None:
    """Return a whole number; None where it is not given."""
    return number(query, name, least, most) if name in query else None


def stream_of(query: MultiMapping[str]) -> Stream:
    """Return the histogram and stream key that are asked for."""
    return Stream(one(query, "histogram"), one(query, "key"))


def items_of(query: MultiMapping[str]) -> list[str]:
    """Return the items that are named."""
    named = query.getall("item", [])
    if len(named) > ITEMS:
        raise Question(f"item: at most {ITEMS} of them")
    return named


def json_of(value: Mapping[str, object], status: int = 200) -> web.Response:
    """Return an answer."""
    return answer(orjson.dumps(value), status)


def answer(body: bytes, status: int = 200) -> web.Response:
    """Return an answer that is JSON already."""
    response = web.Response(body=body, status=status, content_type="application/json")
    if len(body) >= COMPRESS_FROM:
        response.enable_compression()
    return response
