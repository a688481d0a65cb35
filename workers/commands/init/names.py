"""Infer the purpose of a field from the words in its name."""

import re
import unicodedata
from enum import StrEnum
from types import MappingProxyType

from workers.mechanisms.config.views import Path

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def _table(text: str) -> frozenset[str]:
    return frozenset(text.split())


TIME = _table(
    "ts time timestamp date datetime at created occurred when instant clock happened logged"
)
OTHER_TIME = _table(
    "expires expiry expiration due until birth birthday birthdate dob valid end ends ended "
    "scheduled deadline renewal next"
)
ITEM = _table(
    "sku product products item items article articles isbn asin ean gtin upc page pages path url "
    "uri route endpoint screen dest destination title song track video film movie query term "
    "keyword tag tags category categories topic action dish book genre symbol ticker skill service "
    "feature game command lang language error code"
)
COUNT = _table("qty quantity count counts number num pieces units n times copies")
KEY = _table(
    "shop store tenant region country site origin market branch channel city department group "
    "platform warehouse merchant brand area zone county state hub type kind"
)
TYPE = _table("type kind event action op operation status category name")
SOURCE = _table(
    "sensor device host hostname machine station server node instance vehicle tailnum meter probe "
    "unit thing pod trace span request message order flight agent referrer referer ua browser"
)
MEASURE = _table(
    "value reading measurement temperature temp latency duration elapsed ms seconds secs millis price total "
    "amount cost delay size bytes length distance speed weight age score level humidity pressure voltage power "
    "sum rate revenue width height volume energy current percent ratio took"
)
PLACE = _table("lat lon lng latitude longitude")
ID = _table("id ids uuid guid hash token ref")
CHANGING = _table("email mail phone mobile telephone tel msisdn name username nickname fullname")
ITEM_OF_LIST = _table("id name code label")


def words(name: str) -> list[str]:
    """Return the words of a name such as `customerId` or `customer_id`, in lower case."""
    return [word.lower() for word in _WORD.findall(unaccented(name).replace("IDs", "Ids"))]


def unaccented(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


class UserKind(StrEnum):
    PERSON = "person"
    ACCOUNT = "account"
    DEVICE = "device"
    SESSION = "session"
    EVENT = "event"


_NOUNS = MappingProxyType(
    {
        UserKind.PERSON: _table(
            "user usr customer cust client member subscriber player passenger patient person people visitor guest buyer "
            "owner employee driver rider student teacher shopper payer payee cardholder login email mail phone mobile "
            "telephone tel msisdn ssn uid username nickname surname author sender recipient follower friend viewer "
            "voter contact caller callee citizen resident tenantuser reader fullname firstname lastname"
        ),
        UserKind.ACCOUNT: _table("account acct acc iban card pan wallet profile household"),
        UserKind.DEVICE: _table(
            "device ip ipv4 ipv6 imei imsi idfa gaid aaid adid mac fingerprint handset iccid"
        ),
        UserKind.SESSION: _table("session sess sid cookie visit jsessionid"),
        UserKind.EVENT: _table(
            "order request req trace span message msg transaction txn tx event evt invoice payment ticket correlation "
            "log record entry row call booking reservation purchase checkout cart basket job run batch"
        ),
    }
)
_IDENTIFIES = _table(
    "id ids uuid guid key hash hashed sha md5 token ref reference no nr num number name address addr hex pseudonym"
)
# Path segments that say nothing about their content.
_AROUND = _table(
    "info details detail data payload body value context ctx meta metadata attributes props properties after before current"
)
# Endings of names written as one word, such as "userid", the longest first.
_ENDS = sorted(
    _table("uuid guid number name address addr email phone hash key id no ip"),
    key=len,
    reverse=True,
)


def user_kind(path: Path) -> UserKind | None:
    """Return the entity that a field's name identifies, if any.

    The noun decides: the last word, other than words for an identifier, in the last segment of the
    path that has one. `order.customer.id` and `order_customer_id` are a customer,
    `customer.order.id` is an order, and `user_agent` an agent.
    """
    identifies = names_itself = False
    for step in reversed(path.steps):
        for word in reversed([part for whole in words(step) for part in _parts(whole)]):
            if word in _IDENTIFIES or word.isdecimal():
                identifies, names_itself = True, names_itself or word in ID
                continue
            found = next((kind for kind, nouns in _NOUNS.items() if word in nouns), None)
            if found is None and word in _AROUND:
                continue
            return None if found is UserKind.EVENT and not identifies else found
    return UserKind.EVENT if names_itself else None


def _parts(word: str) -> list[str]:
    """Return a word in the singular, with compounds split in two."""
    nouns = frozenset[str]().union(*_NOUNS.values())
    for one in (word, word.removesuffix("s")):
        if one in nouns or one in _IDENTIFIES:
            return [one]
        for end in _ENDS:
            start = one.removesuffix(end)
            if start != one and (start in nouns or start.removesuffix("s") in nouns):
                return [start if start in nouns else start.removesuffix("s"), end]
    return [word]
