"""Shared command-line options and settings loading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from workers.settings.settings import Settings


PATH = click.Path(path_type=Path)
PORT = click.IntRange(0, 65_535)

config_option = click.option(
    "-c", "--config", type=PATH, required=True, metavar="FILE", help="The settings file (TOML)."
)


def load_settings(config: Path) -> Settings:
    from workers.settings.settings import load

    return load(config)


def only_one_line(context: click.Context) -> None:
    """Hide client log lines in commands that report errors themselves; --debug shows them."""
    import logging

    logging.basicConfig(
        level=logging.DEBUG if context.find_root().obj["debug"] else logging.CRITICAL
    )
