"""The installed version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str | None:
    """Return the installed version; None in a checkout that is not installed."""
    try:
        return installed("quietcount")
    except PackageNotFoundError:
        return None
