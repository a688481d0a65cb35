"""What tests of every package share: one real broker a session, and the same examples and surroundings each time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.broker import broker

# The same examples in every run, however slow the machine is. To look for others: HYPOTHESIS_PROFILE=search.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What these say about colours and widths reaches every program that a test starts, and changes what it writes.
for name in (
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "COLUMNS",
    "LINES",
    "PYTHONWARNINGS",
):
    os.environ.pop(name, None)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of a real Apache Kafka (see tests/broker.py)."""
    with broker() as address:
        yield address
