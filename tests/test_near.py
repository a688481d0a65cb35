"""`make near` runs what a change may break first, and not everything."""

from pathlib import Path

import pytest

from tests.near import imported, near

TEXTS = {
    Path("tests/kafka/test_shard.py"): "from workers.kafka.shard import Shard\n",
    Path("tests/worker/test_state.py"): "from workers.kafka import records, shard\n",
    Path("tests/events/test_tree.py"): "from workers.events.tree import build\n",
    Path("tests/test_cli.py"): "import workers.cli\n",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            "workers/kafka/shard.py",
            ["tests/kafka/test_shard.py", "tests/worker/test_state.py"],
        ),
        ("workers/kafka/topics.py", ["tests/kafka/test_shard.py"]),
        ("workers/cli.py", ["tests/test_cli.py"]),
        ("tests/events/test_tree.py", ["tests/events/test_tree.py"]),
        ("bench/users.py", []),
    ],
)
def test_tests_of_the_room_and_importers_are_near(
    changed: str, expected: list[str]
) -> None:
    assert [path.as_posix() for path in near([Path(changed)], TEXTS)] == expected


def test_a_module_whose_name_begins_alike_is_not_imported() -> None:
    """`shard` is not `shards`."""
    assert not imported(Path("workers/kafka/shard.py")).search(
        "from workers.kafka import shards\n"
    )
