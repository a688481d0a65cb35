"""JSON behind a schema's id: the id is cut off, and what follows is JSON like any other.

The schema says nothing that the settings do not, so no registry is asked and nothing validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workers.events.formats.reader import json_payloads
from workers.events.json import Json
from workers.events.logs import Bools, Bytes, Logs, Longs


class FramedJson:
    """Reads JSON behind a schema's id; see `Format`."""

    def __init__(self, json: Json) -> None:
        """
        Args:
            json: reads what follows.
        """
        self._json = json

    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Iterator[Logs]:
        """Log the wanted fields of plain records; see `Format.scan`."""
        payloads, refused = json_payloads(data, values)
        decoder = self._json.decoder(data, payloads)

        def decode(row: int) -> object:
            if row in refused:
                raise ValueError(refused[row])
            return decoder(row)

        return (replace(logs, decode=decode) for logs in self._json.scan(data, payloads, plain))
