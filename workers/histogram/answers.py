"""The lists of a snapshot in pages: one of them is cut, everything else is the same on every page.

    items      of a histogram                go on from page to page
    labels     of a budget of labels         go on from page to page
    value      of one query, where a list    goes on from page to page
    answers    of several queries            go on from page to page; the last of a page may go on
                                             as the first of the next, with its query named again

`parts` cuts and `joined` puts together again: `joined(parts(fields)) == fields`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from workers.mechanisms.sizes import cuts

Fields = Mapping[str, Any]
LISTS = ("items", "labels", "value", "answers")


def parts(fields: Fields, room: int) -> list[dict[str, Any]]:
    """Return the fields of a stream key in parts whose lists take at most `room` bytes of JSON.

    `room` is at least twice the bytes of the longest label in JSON.
    """
    name = next((name for name in LISTS if isinstance(fields.get(name), list)), None)
    if name is None:
        return [dict(fields)]
    if name == "answers":
        atoms = list(_atoms(fields[name]))
        # An answer that goes on names its query again: room for the longest is kept free.
        room -= max((len(orjson.dumps(_empty(answer))) + 1 for answer in fields[name]), default=0)
    else:
        atoms = [(element, len(orjson.dumps(element)) + 1) for element in fields[name]]
    found = []
    for start, stop in cuts([size for _, size in atoms], room):
        elements = [element for element, _ in atoms[start:stop]]
        found.append({**fields, name: _merged(elements) if name == "answers" else elements})
    return found or [dict(fields)]


def joined(pages: Sequence[Fields]) -> dict[str, Any]:
    """Return the whole that came in pages, given all of them in their order."""
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
    """Return the answers, each joined with those that continue it."""
    found: list[dict[str, Any]] = []
    for answer in answers:
        if found and found[-1]["query"] == answer["query"]:
            found[-1]["value"] += answer["value"]
        else:
            value = answer["value"]
            found.append({**answer, "value": list(value) if isinstance(value, list) else value})
    return found
