"""What tests of every package share: one real broker a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker import broker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of a real Apache Kafka (see tests/broker.py)."""
    with broker() as address:
        yield address
