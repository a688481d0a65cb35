"""Record formats of the source partitions, chosen by the settings."""

from __future__ import annotations

from workers.events.field_spans import Format
from workers.events.formats.reader import FormatReader, FramedJson, form_of
from workers.events.json import Json
from workers.events.reader import EventReader
from workers.events.schemas import Access, CommandWait, Registry, Waiting
from workers.events.tree import Node
from workers.runtime.errors import SettingsError
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings

# Same as the timeout for a broker.
_PATIENCE_S = 30.0


class Decoders:
    """A worker's record formats, with one schema registry shared by all threads.

    Raises SettingsError if the format's packages are missing, or its schema cannot be used.
    """

    def __init__(
        self, settings: Settings, reader: EventReader, metrics: Metrics | None = None
    ) -> None:
        self._name, self._tree = settings.events.format, reader.layout.tree
        asked = settings.schema_registry
        self._schema = None if asked is None else asked.reader_schema
        self._url = "" if asked is None else asked.url
        self._registry: Registry | None = None
        if self._name in ("avro", "protobuf") and asked is not None:
            form_of(self._name, self._tree, self._schema)  # raises if packages are missing
            access = Access(asked.url, asked.client(), asked.unknown_wait_ms / 1000)
            self._registry = Registry(access, metrics)

    def form(self, waiting: Waiting | None = None, tree: Node | None = None) -> Format | None:
        """Return the format for one source partition and one thread; None means plain JSON.

        `waiting` is the shard that waits for schemas; None means a command, which gives up soon.
        """
        tree = self._tree if tree is None else tree
        if self._name == "json_schema":
            return FramedJson(Json(tree))
        if self._registry is None:
            return None
        form = form_of(self._name, tree, self._schema)
        if waiting is None:
            refusal = SettingsError(f"schema_registry.url = {self._url!r}: it does not answer")
            waiting = CommandWait(_PATIENCE_S, refusal)
        return FormatReader(form, self._registry, waiting)
