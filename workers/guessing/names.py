"""What the name of a field says of it: the words in it, and what they are commonly used for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workers.shapes.paths import Path

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def _table(text: str) -> frozenset[str]:
    return frozenset(text.split())


TIME = _table("ts time timestamp date datetime at created occurred when instant clock happened logged")
OTHER_TIME = _table(
    "expires expiry expiration due until birth birthday birthdate dob valid end ends ended scheduled deadline "
    "renewal next"
)
ITEM = _table(
    "sku product products item items article articles isbn asin ean gtin upc page pages path url uri route "
    "endpoint screen dest destination title song track video film movie query term keyword tag tags category "
    "categories topic action dish book genre symbol ticker skill service feature game command lang language error "
    "code"
)
COUNT = _table("qty quantity count counts number num pieces units n times copies")
KEY = _table(
    "shop store tenant region country site origin market branch channel city department group platform warehouse "
    "merchant brand area zone county state hub type kind"
)
TYPE = _table("type kind event action op operation status category name")
USER = _table(
    "user users customer session account client visitor member subscriber player passenger patient person uid "
    "email userid customerid sessionid visitorid guest buyer owner ip phone msisdn"
)
SOURCE = _table(
    "sensor device host hostname machine station server node instance vehicle tailnum meter probe unit thing pod "
    "trace span request message order flight agent referrer referer ua browser"
)
MEASURE = _table(
    "value reading measurement temperature temp latency duration elapsed ms seconds secs millis price total "
    "amount cost delay size bytes length distance speed weight age score level humidity pressure voltage power "
    "sum rate revenue width height volume energy current percent ratio took"
)
PLACE = _table("lat lon lng latitude longitude")
ID = _table("id uuid guid key hash token ref")
ITEM_OF_LIST = _table("id name code label")


def words(name: str) -> frozenset[str]:
    """Return the words of a name such as `customerId` or `customer_id`, in lower case."""
    return frozenset(word.lower() for word in _WORD.findall(name))


def of(path: Path) -> frozenset[str]:
    """Return the words of a field's own name, without those around it."""
    return words(path.steps[-1])


def says(path: Path, *tables: Iterable[str]) -> bool:
    """Return whether a field's own name has a word of one of the tables."""
    own = of(path)
    return any(not own.isdisjoint(table) for table in tables)
