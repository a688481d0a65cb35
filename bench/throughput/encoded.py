"""The benchmarks' events with more fields, in JSON, Avro and Protobuf, as producers behind a Schema Registry frame them.

    {"key":"shop-3","items":["product-12","product-7"],"ts":1767225600000,"country":"country-4","kind":"kind-1","price":91}

Country, kind and price follow from the items, so the same events are drawn whatever the form, and what they add up to is
known.
"""

import numpy as np

from bench.throughput.events import (
    RECORD_BYTES_MAX,
    Drawn,
    put_number,
    put_text,
    put_varint,
)
from workers.arrays.compiled import kernel_with_arrays
from workers.arrays.types import Bytes, Longs

FORMS = ("json", "avro", "protobuf")
COUNTRIES = 40
KINDS = 3
PRICES = 500
AVRO_SCHEMA = (
    '{"type":"record","name":"Order","fields":[{"name":"key","type":"string"},'
    '{"name":"items","type":{"type":"array","items":"string"}},{"name":"ts","type":"long"},'
    '{"name":"country","type":"string"},{"name":"kind","type":"string"},{"name":"price","type":"int"}]}'
)
PROTOBUF_SCHEMA = (
    'syntax = "proto3"; message Order { string key = 1; repeated string items = 2; int64 ts = 3; '
    "string country = 4; string kind = 5; int32 price = 6; }"
)

_JSON, _AVRO, _PROTOBUF = range(3)


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, dtype=np.uint8)


_SHOP, _PRODUCT, _COUNTRY, _KIND = (
    _bytes(text) for text in (b"shop-", b"product-", b"country-", b"kind-")
)
_KEY_JSON, _ITEMS_JSON, _NEXT_JSON = (
    _bytes(text) for text in (b'{"key":"', b'","items":["', b'","')
)
_TIME_JSON = _bytes(b'"],"ts":')
_COUNTRY_JSON = _bytes(b',"country":"')
_KIND_JSON = _bytes(b'","kind":"')
_PRICE_JSON = _bytes(b'","price":')


def countries(items: Longs) -> Longs:
    """Return each event's country, from its items, int64 (n, 2)."""
    return items[:, 0] % COUNTRIES


def kinds(items: Longs) -> Longs:
    """Return each event's kind."""
    return items[:, 1] % KINDS


def prices(items: Longs) -> Longs:
    """Return each event's price."""
    return (7 * items[:, 0] + items[:, 1]) % PRICES


class Encoder:
    """Makes the payload of record batches, of events without users.

    Args:
        form: one of FORMS.
        schema_id: in the registry; of no matter to JSON.
    """

    def __init__(self, form: str, schema_id: int = 0) -> None:
        self._form = FORMS.index(form)
        self._head = _bytes(
            b"\0"
            + schema_id.to_bytes(4, "big")
            + (b"\0" if form == "protobuf" else b"")
        )

    def __call__(self, drawn: Drawn, rows: Longs, times: Longs) -> Bytes:
        """Return the records of a batch, as `events.payload`."""
        items = drawn.items[rows]
        out = np.empty(RECORD_BYTES_MAX * len(rows), dtype=np.uint8)
        further = np.stack((countries(items), kinds(items), prices(items)), axis=1)
        end = put_encoded(
            out, self._form, self._head, drawn.keys[rows], items, times[rows], further
        )
        return out[:end]


@kernel_with_arrays
def put_unsigned(out: Bytes, at: int, number: int) -> int:
    """Write a number that is not negative, 7 bits a byte; return the place after it."""
    while number > 127:
        out[at] = number & 127 | 128
        at += 1
        number >>= 7
    out[at] = number
    return at + 1


@kernel_with_arrays
def put_named(
    out: Bytes, at: int, form: int, tag: int, name: Bytes, number: int
) -> int:
    """Write a text such as shop-3 with its length, and in Protobuf its tag before it; return the place after it."""
    length = len(name) + 1
    left = number // 10
    while left > 0:
        length += 1
        left //= 10
    if form == _PROTOBUF:
        out[at] = tag << 3 | 2
        at = put_unsigned(out, at + 1, length)
    elif form == _AVRO:
        at = put_varint(out, at, length)
    return put_number(out, put_text(out, at, name), number)


@kernel_with_arrays
def put_whole(out: Bytes, at: int, form: int, tag: int, number: int) -> int:
    """Write a whole number; return the place after it."""
    if form == _PROTOBUF:
        out[at] = tag << 3
        return put_unsigned(out, at + 1, number)
    if form == _AVRO:
        return put_varint(out, at, number)
    return put_number(out, at, number)


@kernel_with_arrays
def put_order(
    out: Bytes,
    form: int,
    head: Bytes,
    key: int,
    items: Longs,
    time: int,
    further: Longs,
) -> int:
    """Write an event at the beginning of `out`; return its length."""
    country = further[0]
    kind = further[1]
    price = further[2]
    if form == _JSON:
        at = put_named(out, put_text(out, 0, _KEY_JSON), form, 1, _SHOP, key)
        at = put_named(out, put_text(out, at, _ITEMS_JSON), form, 2, _PRODUCT, items[0])
        at = put_named(out, put_text(out, at, _NEXT_JSON), form, 2, _PRODUCT, items[1])
        at = put_whole(out, put_text(out, at, _TIME_JSON), form, 3, time)
        at = put_named(
            out, put_text(out, at, _COUNTRY_JSON), form, 4, _COUNTRY, country
        )
        at = put_named(out, put_text(out, at, _KIND_JSON), form, 5, _KIND, kind)
        at = put_whole(out, put_text(out, at, _PRICE_JSON), form, 6, price)
        out[at] = 125  # }
        return at + 1
    at = put_named(out, put_text(out, 0, head), form, 1, _SHOP, key)
    if form == _AVRO:
        at = put_varint(out, at, 2)  # a block of two items
    at = put_named(out, at, form, 2, _PRODUCT, items[0])
    at = put_named(out, at, form, 2, _PRODUCT, items[1])
    if form == _AVRO:
        at = put_varint(out, at, 0)  # and no more
    at = put_whole(out, at, form, 3, time)
    at = put_named(out, at, form, 4, _COUNTRY, country)
    at = put_named(out, at, form, 5, _KIND, kind)
    return put_whole(out, at, form, 6, price)


@kernel_with_arrays
def put_encoded(
    out: Bytes,
    form: int,
    head: Bytes,
    keys: Longs,
    items: Longs,
    times: Longs,
    further: Longs,
) -> int:
    """Write the records of a batch, without keys, as `events.put_records`; `further` is int64 (n, 3)."""
    record = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    event = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    end = 0
    for i in range(len(keys)):
        length = put_order(event, form, head, keys[i], items[i], times[i], further[i])
        record[0] = 0  # attributes
        at = put_varint(record, put_varint(record, 1, times[i] - times[0]), i)
        at = put_text(
            record,
            put_varint(record, put_varint(record, at, -1), length),
            event[:length],
        )
        at = put_varint(record, at, 0)  # headers
        end = put_text(out, put_varint(out, end, at), record[:at])
    return end
