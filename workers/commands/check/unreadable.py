"""Guess what a record is that is not a JSON object, and how to make it readable.

Only for the operator's eyes: a hint beside the reject reason, from the first such record.
"""

import json
from contextlib import suppress

import msgspec

_FRAME = 5  # Confluent's: a zero byte and the schema's id in four
_ONE_LINE = (
    "in a file, every event needs a line of its own (jq -c '.[]' FILE writes them)"
)
_GLUE_FRAME = 18  # AWS Glue's: version 3, compression 0 or 5, a UUID

# What the first bytes say, in the order in which they are compared.
_BEGINNINGS = (
    (
        b"\x1f\x8b",
        "gzip inside the record: let the producer compress (compression.type) instead",
    ),
    (
        b"(\xb5/\xfd",
        "zstd inside the record: let the producer compress (compression.type) instead",
    ),
    (b"Obj\x01", "an Avro file; records need a schema registry's frame"),
    (
        b"\xc3\x01",
        "Avro's single-object encoding; records need a schema registry's frame",
    ),
    (b"PAR1", "a Parquet file: read it with --input"),
    (b"\xff\xfe", "UTF-16; JSON is UTF-8"),
    (b"\xfe\xff", "UTF-16; JSON is UTF-8"),
    (b"{'", "Python's repr() of a dictionary; json.dumps() writes JSON"),
)


def hint(value: bytes) -> str:
    """Guess the format of a record rejected as not JSON or not an object; "" if unknown."""
    if value.strip() in (b"[", b"{"):
        return f"the first line of JSON in many lines; {_ONE_LINE}"
    begins = (text for beginning, text in _BEGINNINGS if value.startswith(beginning))
    return next(begins, None) or _framed(value) or _nearly_json(value)


def _framed(value: bytes) -> str:
    """Return what a value is that begins as a schema registry's serializer writes; "": it does not.

    Confluent's frame, or that of AWS Glue.
    """
    if value[:1] == b"\x00" and len(value) > _FRAME:
        if value[_FRAME:].lstrip()[:1] == b"{":
            return 'JSON behind a schema registry\'s frame; events.format = "json_schema" reads it'
        schema = int.from_bytes(value[1:_FRAME])
        return (
            f"perhaps a schema registry's frame (schema {schema}); "
            'events.format = "avro" or "protobuf" would read it'
        )
    # A 3, a 0 or 5 for the compression, and the schema's UUID.
    if (
        value[:1] == b"\x03"
        and value[1:2] in (b"\x00", b"\x05")
        and len(value) > _GLUE_FRAME
    ):
        return "perhaps AWS Glue's frame, which Quietcount does not read"
    return ""


def _nearly_json(value: bytes) -> str:
    """Return what keeps a text from being JSON, by trying more and more lenient readers."""
    with suppress(ValueError, RecursionError):
        return _wrong_shape(msgspec.json.decode(value))
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ""
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return "NaN or Infinity, which JSON does not have; null is read"
    with suppress(ValueError, RecursionError):
        json.loads(text, strict=False)
        return "a control character in a text, which JSON writes escaped (a tab as \\t)"
    with suppress(ValueError, RecursionError):
        _document, stop = json.JSONDecoder().raw_decode(text.lstrip())
        if text.lstrip()[stop:].lstrip()[:1] in ("{", "["):
            return "several JSON documents in one record; each event needs a record of its own"
    begins = text.lstrip()[:1]
    return (
        "text, not JSON" if begins not in ("{", "[", "") and text.isprintable() else ""
    )


def _wrong_shape(document: object) -> str:
    """Return why valid JSON is no event."""
    match document:
        case [dict(), *_]:
            return f"a list of events; each needs a record of its own; {_ONE_LINE}"
        case str():
            with suppress(ValueError, RecursionError):
                if isinstance(msgspec.json.decode(document), dict):
                    return "a text that holds JSON: the producer encodes events twice"
    return ""
