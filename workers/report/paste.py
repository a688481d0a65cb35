"""A run's settings as a section of a settings file, ready to paste."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping

from workers.backtest.outcomes import Outcome

# Written first, in the order in which people read them; the others follow.
_FIRST = ("name", "mechanism", "tick", "horizon", "start", "max_items", "max_count", "max_items_per_user", "epsilon", "rho", "delta")
# Joiners belong to letters and emoji; whatever else is invisible is escaped.
_JOINERS = "\u200c\u200d"
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def histogram_section(run: Outcome) -> list[str]:
    """Return the lines of the [[histogram]] with the settings of a run.

    A long domain is not in the results: a comment says that it is to be taken from the file.
    """
    settings = dict(run.settings)
    settings.setdefault("name", run.row.histogram)
    labels = settings.pop("domain_labels", None)
    lines = ["[[histogram]]"]
    for name in (*(name for name in _FIRST if name in settings), *(name for name in settings if name not in _FIRST)):
        bare = name == "start" and isinstance(settings[name], str)  # a time has no quotes in TOML
        lines.append(f"{name} = {settings[name] if bare else toml_value(settings[name])}")
    if labels is not None:
        lines.append(f"# domain or domain_file: as in your settings file ({labels:,} labels)")
    return lines


def toml_value(value: object) -> str:
    """Return a value that came from JSON as TOML, on one line."""
    if isinstance(value, str):
        return _escaped(json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value)


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    return (f"{name} = {toml_value(value)}" for name, value in table.items())


def _escaped(text: str) -> str:
    """Return a quoted text with what cannot be seen in it escaped, as TOML has it."""
    return "".join(
        f"\\U{ord(letter):08x}" if unicodedata.category(letter) in _INVISIBLE and letter not in _JOINERS else letter
        for letter in text
    )
