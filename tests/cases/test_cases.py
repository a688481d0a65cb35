"""Inputs from public bug trackers (README.md beside this file) give the answers that it names."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.commands.check.test_examine import Check
from workers.commands.check.unreadable import hint
from workers.kafka.clients import Connection
from workers.runtime.errors import SettingsError
from workers.settings.settings import load

MS = 1_795_333_200_000
EVENT = {"key": "s1", "items": "tea", "ts": MS}
TEXT = json.dumps(EVENT)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\0\0\0\0\x02" + TEXT.encode(), 'events.format = "json_schema" reads it'),
        (b"\0\0\0\1\x07\x02\x04tea", "schema 263"),
        (b"\x03\0" + bytes(range(16)) + b"\x02\x04tea", "AWS Glue"),
        (b"Obj\x01\x04\x16avro.schema", "an Avro file"),
        (b"\xc3\x01" + bytes(8) + b"\x02", "single-object"),
        (gzip.compress(TEXT.encode(), mtime=0), "compression.type"),
        (TEXT.encode("utf-16"), "JSON is UTF-8"),
        (str(EVENT).encode(), "json.dumps() writes JSON"),
        (TEXT.replace('"tea"', "NaN").encode(), "NaN or Infinity"),
        (TEXT.replace("tea", "te\ta").encode(), "control character"),
        ((TEXT + TEXT).encode(), "several JSON documents"),
        (f"[{TEXT},{TEXT}]".encode(), "a list of events"),
        (b"[", "jq -c"),
        (json.dumps(TEXT).encode(), "encodes events twice"),
        (b"2026-11-22 10:00:00 INFO tea", "text, not JSON"),
        (b"\xe9t\xe9", ""),
        (b"5", ""),
    ],
)
def test_a_record_that_is_no_json_object_is_recognised(
    value: bytes, words: str
) -> None:
    told = hint(value)
    assert (words in told) if words else not told


def test_check_shows_what_such_records_are(tmp_path: Path) -> None:
    findings = Check(tmp_path).found([b"\0\0\0\0\x02" + TEXT.encode()])
    (why,) = findings.why
    assert why.reason == "not JSON"
    assert "json_schema" in why.hint


def test_mongodbs_extended_json_is_read_by_the_path_that_check_names(
    tmp_path: Path,
) -> None:
    extended = {**EVENT, "ts": {"$date": "2026-11-22T10:00:00Z"}}
    source = [extended]
    iso: Any = {"timestamp_unit": "iso"}
    (why,) = Check(tmp_path, **iso).found(source).why
    assert why.hint == 'it is an object, so perhaps ts."$date"'
    named = Check(tmp_path, timestamp='ts."$date"', **iso)
    assert named.found(source).accepted == 1


def test_a_label_that_pandas_made_a_float_is_named(tmp_path: Path) -> None:
    (why,) = Check(tmp_path).found([{**EVENT, "items": 123.0}]).why
    assert "decimal point" in why.hint


@pytest.mark.parametrize(
    "written", [b"%s", b"%s\r", b"\xef\xbb\xbf%s"], ids=["lf", "crlf", "bom"]
)
def test_events_are_read_however_lines_begin_and_end(
    tmp_path: Path, written: bytes
) -> None:
    assert Check(tmp_path).found([written % TEXT.encode()] * 3).accepted == 3


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    packed = gzip.compress((TEXT + "\n").encode() * 3)
    (tmp_path / "events.jsonl.gz").write_bytes(packed)
    source = str(tmp_path / "events.jsonl.gz")
    assert Check(tmp_path).found(source).accepted == 3


def test_blank_lines_between_events_are_nothing(tmp_path: Path) -> None:
    findings = Check(tmp_path).found([TEXT.encode(), b""] * 3)
    assert (findings.accepted, findings.rejected) == (3, 0)


@pytest.mark.parametrize(
    "written", ["1795333200000.25", "1.7953332e12", '"1795333200000"']
)
def test_a_time_in_ms_is_read_in_every_notation_of_the_number(
    tmp_path: Path, written: str
) -> None:
    findings = Check(tmp_path).found([TEXT.replace(str(MS), written).encode()])
    assert findings.first_ms == MS


def test_debeziums_deletions_are_named_and_can_be_left_out(tmp_path: Path) -> None:
    changes = [{"before": None, "after": EVENT, "op": "c", "ts_ms": MS}] * 3
    deleted = {"before": EVENT, "after": None, "op": "d", "ts_ms": MS}
    source = [*changes, deleted]
    fields: Any = {"key": "after.key", "items": "after.items", "timestamp": "ts_ms"}
    findings = Check(tmp_path, **fields).found(source)
    (why,) = findings.why
    assert (findings.accepted, why.reason) == (3, "missing field 'after.key'")
    only = [{"field": "op", "in": ["c", "r", "u"]}]
    findings = Check(tmp_path, where=only, **fields).found(source)
    assert (findings.accepted, findings.skipped) == (3, 1)


def test_a_connect_envelope_names_the_path_inside(tmp_path: Path) -> None:
    wrapped = {"schema": {"type": "struct"}, "payload": EVENT}
    (why,) = Check(tmp_path).found([wrapped]).why
    assert why.absent is not None and "payload.key" in why.absent.nearest


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = Check(tmp_path).path
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path).worker.name == "w"


def test_a_scheme_before_the_bootstrap_address_is_refused_by_name(
    tmp_path: Path,
) -> None:
    path = Check(tmp_path).path
    path.write_text(
        path.read_text().replace("nowhere:9092", "PLAINTEXT://nowhere:9092")
    )
    with pytest.raises(SettingsError, match="kafka.bootstrap"):
        load(path)


@pytest.mark.parametrize("name", ["sasl.jaas.config", "ssl.truststore.location"])
def test_settings_of_javas_clients_are_refused_by_name(
    tmp_path: Path, name: str
) -> None:
    store = tmp_path / "client.jks"
    store.touch()
    with pytest.raises(KafkaException, match="Java"):
        Connection("nowhere:9092", {name: str(store)}).admin()
