"""A user's bytes are where docs/erasure.md says, and nowhere once they are deleted there."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.worker.harness import Site, known, now_ms, sale, unk, until

pytestmark = pytest.mark.slow

USER = "person-7f3a91c2@example.org"
# As docs/erasure.md says.
DIGEST = hashlib.blake2b(USER.encode(), person=b"qc-user", digest_size=16).digest()
KEY = b"shop-of-this-person"
PAIR_OF = len(KEY).to_bytes(4) + KEY + b"an-item-of-theirs"
PAIR = hashlib.blake2b(PAIR_OF, person=b"qc-pair", digest_size=8).digest()


def topics_of(site: Site) -> list[str]:
    settings = site.settings
    own = [*settings.internal_topics, *settings.output_topics, settings.rejects_topic]
    return list(dict.fromkeys([*site.topics, *own]))


def topics_with(site: Site, text: bytes, *, compacted: bool = False) -> set[str]:
    """Return the topics with a record that contains a text; `compacted`: the last of each key."""
    found = set()
    for topic in topics_of(site):
        records: dict[object, bytes] = {}
        for message in site.read(topic):
            key = message.key() or b""
            headers: Any = message.headers() or []
            whole = b"\0".join([key, message.value() or b"", *(v for _, v in headers)])
            place = (message.partition(), message.offset())
            of_state = compacted and topic.endswith("-state")
            if of_state and message.value() is None:
                records.pop((message.partition(), key), None)
            else:
                records[(message.partition(), key) if of_state else place] = whole
        if any(text in whole for whole in records.values()):
            found.add(topic.removeprefix(f"{site.name}-").removeprefix(f"{site.name}."))
    return found


def files_with(site: Site, text: bytes) -> list[Path]:
    files = [path for path in site.directory.rglob("*") if path.is_file()]
    assert any("contribute" in str(path) for path in files)
    return [path for path in files if text in path.read_bytes()]


def erase(site: Site, names: set[str], text: bytes) -> None:
    """Delete what precedes the last record with a text, and that, as kafka-delete-records.sh does."""
    for topic in topics_of(site):
        if topic.partition("-")[2] in names or topic.partition(".")[2] in names:
            last: dict[int, int] = {}
            for message in site.read(topic):
                if text in (message.key() or b"") + (message.value() or b""):
                    last[message.partition() or 0] = message.offset() or 0
            ends = [
                TopicPartition(topic, at, offset + 1) for at, offset in last.items()
            ]
            for answer in site.admin.delete_records(ends).values():
                answer.result()


def test_an_erased_users_bytes_are_in_no_topic_and_no_file(
    bootstrap: str, tmp_path: Path
) -> None:
    bounds: dict[str, Any] = {"max_items_per_user": 2, "horizon": "4s"}
    site = Site(
        bootstrap,
        tmp_path,
        [unk(**bounds), known(**bounds)],
        partitions=2,
        owners=1,
        events={"user": "user"},
        privacy={"unit": "user", "rekey": True},
    )
    at_ms = now_ms()
    sold = [sale("a", at_ms, user=f"other-{n}") for n in range(40)]
    site.produce(0, [*sold, sale("b", at_ms, user=USER)])
    own = sale("an-item-of-theirs", at_ms, key=KEY.decode(), user=USER)
    site.produce(1, [own, f"no event of {USER}".encode()])
    with site.running():
        site.wait_published(at_ms)
        until(lambda: bool(site.reasons()), "the reject is there")
        everywhere = {"events", "by-user", "rejects"}
        assert topics_with(site, USER.encode()) == everywhere
        assert topics_with(site, DIGEST) == {"contribute-state"}
        assert topics_with(site, PAIR) == {"contribute-state"}
        # The epoch ends: the last record of each key has nothing of the user any more.
        site.wait_published(at_ms + 6_000)
        later_ms = now_ms()
        site.produce(0, [sale("a", later_ms, user="other-1")])
        site.wait_published(later_ms)
    assert topics_with(site, DIGEST, compacted=True) == set()
    assert topics_with(site, PAIR, compacted=True) == set()
    assert files_with(site, USER.encode()) == []
    erase(site, everywhere, USER.encode())
    assert topics_with(site, USER.encode()) == set()
    # What was published stands, is audited, and goes on.
    site.assert_clean()
    again_ms = now_ms()
    site.produce(0, [sale("a", again_ms, user="other-2")])
    site.run_until(again_ms)
    site.assert_clean()
