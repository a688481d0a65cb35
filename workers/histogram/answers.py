"""Answers too long for one message, in pages: what is a list is cut, everything else is the same on every page.

    labels     of a budget of labels         go on from page to page
    value      of one query, where a list    goes on from page to page
    answers    of several queries            go on from page to page; the first of a page may be the rest of the last of the page before: it
                                             names the same query, and its `value`, a list, goes on

`parts` cuts and `joined` puts together again: `joined(parts(fields)) == fields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from workers.mechanisms.sizes import cuts

Fields = Mapping[str, Any]
LISTS = ("labels", "value", "answers")


def parts(fields: Fields, room: int) -> list[dict[str, Any]]:
    """Return the fields of an answer in parts that each take at most `room` bytes of JSON more than without their lists.

    Args:
        fields: of one stream key.
        room: bytes; at least twice those of the longest label in JSON.
    """
    name = next((name for name in LISTS if isinstance(fields.get(name), list)), None)
    if name is None:
        return [dict(fields)]
    atoms = (
        list(_atoms(fields[name]))
        if name == "answers"
        else [(element, len(orjson.dumps(element)) + 1) for element in fields[name]]
    )
    # An answer that goes on names its query once more: that is what the longest head is kept free for.
    free = (
        max((len(orjson.dumps(_empty(answer))) + 1 for answer in fields[name]), default=0) if name == "answers" else 0
    )
    found = []
    for start, stop in cuts([size for _, size in atoms], room - free):
        elements = [element for element, _ in atoms[start:stop]]
        found.append({**fields, name: _merged(elements) if name == "answers" else elements})
    return found or [dict(fields)]


def joined(pages: Sequence[Fields]) -> dict[str, Any]:
    """Return the whole of what came in pages, all of them and in their order."""
    whole = dict(pages[0])
    for name in LISTS:
        if isinstance(whole.get(name), list):
            elements = [element for page in pages for element in page[name]]
            whole[name] = _merged(elements) if name == "answers" else elements
    return whole


def _empty(answer: Fields) -> dict[str, Any]:
    return {**answer, "value": []} if isinstance(answer["value"], list) else dict(answer)


def _atoms(answers: Sequence[Fields]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the answers, one for each element of a list, with the bytes that each adds."""
    for answer in answers:
        head = len(orjson.dumps(_empty(answer))) + 1
        if not isinstance(answer["value"], list) or not answer["value"]:
            yield dict(answer), head
            continue
        for i, element in enumerate(answer["value"]):
            yield {**answer, "value": [element]}, len(orjson.dumps(element)) + 1 + (0 if i else head)


def _merged(answers: Sequence[Fields]) -> list[dict[str, Any]]:
    """Return the answers with those put together that go on with the one before."""
    found: list[dict[str, Any]] = []
    for answer in answers:
        if found and found[-1]["query"] == answer["query"]:
            found[-1]["value"] += answer["value"]
        else:
            found.append(
                {**answer, "value": list(answer["value"])} if isinstance(answer["value"], list) else dict(answer)
            )
    return found
