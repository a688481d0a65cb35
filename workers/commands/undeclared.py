"""Say which stream keys the settings do not declare, and where record keys are written as JSON.

Exact, for the operator only.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from workers.events.project import Projection
from workers.mechanisms.config.views import RECORD_KEY, Path, Shape
from workers.pipeline.factory import declared_keys
from workers.runtime.printing import plural
from workers.settings.settings import Settings

#: A mark of JSON strings in the record keys of a topic, which init finds too.
QUOTES = (
    "the record keys are JSON strings; the quotes are part of each key, as $key is the key as "
    "written"
)
# Keys in a message, and characters of one.
_SHOWN = 5
_CHARACTERS = 60
# Different keys that are counted; those that come later are left out.
_KEYS_MAX = 10_000


def json_string(key: str) -> str | None:
    """Return the text in a key that is a JSON string, such as `"s1"` with its quotes; else None."""
    if not (len(key) > 1 and key.startswith('"') and key.endswith('"')):
        return None
    try:
        text = json.loads(key)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


class UndeclaredKeys:
    """Counts of stream keys that rejected events have and no histogram declares.

    A view says which field, or the record key, has a histogram's stream key.
    """

    def __init__(self, settings: Settings, shape: Shape | None = None) -> None:
        """Events are read by `shape`; None: by that of the settings."""
        self._shape = settings.shape if shape is None else shape
        self._projection = Projection(self._shape)
        # The views as the settings have them.
        self._in_topic = settings.shape.views
        self._declared = _declared(settings, self._shape)
        # How many events have each undeclared key.
        self._counts = Counter[str]()
        # Whether any of them was a record key, for the wording.
        self._has_record_keys = False

    def __repr__(self) -> str:
        return f"UndeclaredKeys({len(self._counts)})"

    def add(self, record_key: bytes | None, record: object) -> None:
        """Count the undeclared keys of an event, each once; `record` None: not decoded."""
        event = self._projection.event(record)
        # A text is the reason why it is no event; its record key counts all the same.
        views = [] if isinstance(event, str) else event.views
        keys = set[str]()
        for index, (name, view) in enumerate(self._shape.views.items()):
            declared = self._declared[view.key]
            if declared is None:
                continue
            key = None
            if view.key == RECORD_KEY and record_key is not None:
                key = record_key.decode(errors="backslashreplace")
            elif isinstance(view.key, Path) and views:
                values = views[index]
                key = None if values is None else values.key
            if key is not None and key not in declared:
                keys.add(key)
                # A file has the record key of the topic as a field.
                self._has_record_keys |= self._in_topic[name].key == RECORD_KEY
        for key in keys:
            if key in self._counts or len(self._counts) < _KEYS_MAX:
                self._counts[key] += 1

    def lines(self) -> Iterator[str]:
        """Yield sentences on the most frequent undeclared keys, and what to do about quotes."""
        if not self._counts:
            return
        noun = "record key" if self._has_record_keys else "key"
        number = len(self._counts)
        few = "" if number <= _SHOWN else "the most frequent of "
        yield f"{few}{plural(number, f'undeclared {noun}')}: {shown_keys(self._counts)}"
        quoted = sum(
            n for key, n in self._counts.items() if json_string(key) is not None
        )
        if quoted:
            total = self._counts.total()
            some = (
                ""
                if quoted == total
                else f" in {quoted:,} of {plural(total, 'record')}"
            )
            subject = (
                QUOTES
                if self._has_record_keys
                else "the keys are JSON strings, with their quotes"
            )
            yield f"{subject}{some}: {_remedy(self._counts)}"


def _declared(
    settings: Settings, shape: Shape
) -> Mapping[Path | str, frozenset[str] | None]:
    """Return, by the field that has a stream key, the keys that any histogram counts; None: all.

    The field is "$key" where it is the record key, "$all" where all events have one key.
    """
    by_field: dict[Path | str, frozenset[str] | None] = {}
    for view, keys in declared_keys(settings).items():
        field = shape.views[view].key
        others = by_field.get(field, frozenset())
        by_field[field] = None if keys is None or others is None else others | keys
    return by_field


def shown_keys(counts: Counter[str]) -> str:
    """Return the most frequent keys as a settings file writes them, with their numbers."""
    return ", ".join(
        f"{shown_key(key)} ({n:,})" for key, n in counts.most_common(_SHOWN)
    )


def shown_key(key: str) -> str:
    if len(key) > _CHARACTERS:
        key = f"{key[: _CHARACTERS - 3]}..."
    return json.dumps(key, ensure_ascii=False)


def _remedy(counts: Counter[str]) -> str:
    """Return how keys that are JSON strings can be made to count."""
    keys = [key for key, _ in counts.most_common() if json_string(key) is not None]
    written = ", ".join(map(shown_key, keys[:_SHOWN]))
    more = ", ..." if len(keys) > _SHOWN else ""
    return f"declare them so, keys = [{written}{more}], or let the producer write plain text"
