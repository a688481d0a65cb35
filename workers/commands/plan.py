"""`quietcount plan`: guarantee, noise, error and memory of every histogram, computed before anything runs."""

from __future__ import annotations

import sys

import msgspec
from rich.console import Console

from workers.plan.make import make_plan
from workers.plan.text import show
from workers.settings import Settings


def show_plan(settings: Settings, *, as_json: bool) -> int:
    """Prints the plan; `as_json` as one JSON object (docs/plan.md).

    Returns:
        The exit code, 0.
    """
    plan = make_plan(settings)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plan), indent=1).decode() + "\n")
    else:
        show(plan, Console(highlight=False))
    return 0
