"""Infer the purpose of a field from the words in its name.

The first tables have words for purposes: a time, an item, a count, a stream key. Those by
`UserKind` have nouns for what a value may identify, `_IDENTIFIES` words, such as "id", that say so.
"""

import re
import unicodedata
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from workers.mechanisms.config.views import Path

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def _table(text: str) -> frozenset[str]:
    """Return a set of words, for a table."""
    return frozenset(text.split())


TIME = _table(
    "ts time timestamp date datetime at created occurred when instant clock happened logged"
)
OTHER_TIME = _table(
    "expires expiry expiration due until birth birthday birthdate dob valid end ends ended "
    "scheduled deadline renewal next first touch previous"
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
CHANGING = _table(
    "email mail phone mobile telephone tel msisdn name username nickname fullname login handle display"
)
#: Words of a field that holds an address on the web.
LINK = _table(
    "url uri href link links avatar gravatar photo picture image img icon portrait homepage website"
)
#: Several people share one of these, even where it belongs to a person.
SHARED = _table(
    "plan role segment tier team org organization organisation company tenant language locale "
    "timezone cohort experiment variant campaign source currency status state"
)
ITEM_OF_LIST = _table("id name code label")


def words(name: str) -> list[str]:
    """Return the words of a name such as `customerId` or `customer_id`, in lower case."""
    # `IDs` would be split into `I` and `Ds`.
    return [
        word.lower() for word in _WORD.findall(unaccented(name).replace("IDs", "Ids"))
    ]


def unaccented(text: str) -> str:
    return "".join(
        c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)
    )


class UserKind(StrEnum):
    """What a field's values may identify."""

    PERSON = "person"
    ACCOUNT = "account"
    DEVICE = "device"
    SESSION = "session"
    EVENT = "event"
    #: What people share with few others, such as an address or a birthday: it names no user.
    TRAIT = "trait"


#: Kinds that a worker can protect as users.
USERS = frozenset(
    {UserKind.PERSON, UserKind.ACCOUNT, UserKind.DEVICE, UserKind.SESSION}
)
_NOUNS = MappingProxyType(
    {
        UserKind.PERSON: _table(
            "user usr customer cust client member subscriber player passenger patient person people visitor guest buyer "
            "owner employee driver rider student teacher shopper payer payee cardholder login email mail phone mobile "
            "telephone tel msisdn ssn uid username nickname surname author sender recipient follower friend viewer "
            "voter contact caller callee citizen resident tenantuser reader fullname actor principal assignee reviewer "
            "committer creator commenter participant attendee applicant beneficiary policyholder borrower donor taxpayer "
            "passport identity ecid mcid mcvisid visid cpf aadhaar handle skype whatsapp fax"
        ),
        UserKind.ACCOUNT: _table(
            "account acct acc iban card pan wallet profile household"
        ),
        UserKind.DEVICE: _table(
            "device ip ipv4 ipv6 imei imsi meid idfa idfv gaid aaid adid oaid rida udid ssaid androidid mac fingerprint "
            "handset iccid fcm apns plate vin"
        ),
        UserKind.SESSION: _table("session sess sid cookie visit jsessionid"),
        UserKind.EVENT: _table(
            "order request req trace span message msg transaction txn tx event evt invoice payment ticket correlation "
            "log record entry row call booking reservation purchase checkout cart basket job run batch click "
            "pageview impression insert idempotency tracking shipment parcel"
        ),
        UserKind.TRAIT: _table("billing shipping delivery"),
    }
)
#: Nouns that identify somebody only together with a word such as "id" or "token".
_WITH_ID = MappingProxyType(
    {
        UserKind.PERSON: _table(
            "distinct amplitude mixpanel heap braze crm tax national loyalty insurance nhs"
        ),
        UserKind.DEVICE: _table(
            "anonymous pseudo advertising advertiser idfa android browser installation install appsflyer push "
            "registration cross appinstance"
        ),
        UserKind.EVENT: _table("view"),
    }
)
#: Whole names, without what separates their words.
_WHOLE = MappingProxyType(
    {
        UserKind.PERSON: _table(
            "visidhigh visidlow loyaltynumber membershipnumber gsmnumber"
        ),
        UserKind.DEVICE: _table(
            "ga fbp fbc gcl cid gcid fpid hubspotutk licenseplate licenceplate numberplate plateno appinstanceid "
            "remoteaddr remotehost remoteaddress xforwardedfor forwardedfor"
        ),
        UserKind.EVENT: _table("gclid fbclid msclkid ttclid dclid wbraid gbraid"),
        UserKind.TRAIT: _table(
            "firstname lastname givenname familyname middlename maidenname birthname birthdate birthday dateofbirth dob street "
            "streetaddress streetname address address1 address2 addressline addressline1 addressline2 postaladdress "
            "homeaddress driverlicense driverslicense driverlicence driverslicence socialsecuritynumber"
        ),
    }
)
_IDENTIFIES = _table(
    "id ids uuid guid key hash hashed sha md5 token ref reference no nr num number name address addr hex pseudonym "
    "idx index"
)
_ALL_NOUNS = frozenset[str]().union(*_NOUNS.values(), *_WITH_ID.values())
# Path segments that say nothing about their content.
_AROUND = _table(
    "info details detail data payload body value context ctx meta metadata attributes props properties after before current"
)
_PLACE_IN_ORDER = _table("idx index no nr num number")
# Endings of names written as one word, such as "userid", the longest first.
_ENDS = sorted(
    _table(
        "uuid guid number name address addr email phone hash key id no ip token idx index"
    ),
    key=len,
    reverse=True,
)


def user_kind(path: Path) -> UserKind | None:
    """Return the entity that a field's name identifies; None: nobody and nothing known.

    The noun decides: the last word, other than words for an identifier, in the last segment of the
    path that has one. `order.customer.id` and `order_customer_id` are a customer,
    `customer.order.id` is an order, and `user_agent` an agent, which is nobody.
    """
    return _kind_by_noun(path) or _kind_of_whole_name(path.steps[-1])


def kind_of_name(path: Path) -> UserKind | None:
    """Return the entity that a field's own name identifies, without the objects around it."""
    return user_kind(Path(path.steps[-1:]))


def _kind_by_noun(path: Path) -> UserKind | None:
    """Return the entity that the path's noun names, by the rule of `user_kind`; None: none."""
    # Words for an identifier behind the noun.
    identified_by = set[str]()
    for step in reversed(path.steps):
        for word in reversed(_parts_of_name(step)):
            if word in _IDENTIFIES or word.isdecimal():
                identified_by.add(word)
                continue
            kind = _entity(_NOUNS, word)
            if kind is None and not identified_by.isdisjoint(ID):
                kind = _entity(_WITH_ID, word)
            if kind is None and word in _AROUND:
                continue
            # `event_name` and `transaction_name` name a type.
            if kind is UserKind.EVENT and not identified_by - {"name"}:
                return None
            # A session's number counts the sessions of one user.
            if (
                kind is UserKind.SESSION
                and identified_by
                and identified_by <= _PLACE_IN_ORDER
            ):
                return UserKind.TRAIT
            # `shipping` alone is an option, `shipping_address` is somebody's.
            return None if kind is UserKind.TRAIT and not identified_by else kind
    # An id of nothing in particular is the event's.
    return None if identified_by.isdisjoint(ID) else UserKind.EVENT


def _kind_of_whole_name(name: str) -> UserKind | None:
    """Return the kind of a name whose last words are, together, a known one; None: they are not."""
    parts = words(name)
    # Its last words, the most of them first.
    endings = ("".join(parts[start:]) for start in range(len(parts)))
    return next(filter(None, (_entity(_WHOLE, ending) for ending in endings)), None)


def container_kind(steps: tuple[str, ...]) -> UserKind | None:
    """Return the person, account or device that an object is, by the last word of its name.

    None: it is none of them. `steps` is the object's path; names that say nothing, such as
    "details", are passed over.
    """
    for step in reversed(steps):
        word = _parts_of_name(step)[-1:]
        if not word or word[0] in _AROUND:
            continue
        kind = _entity(_NOUNS, word[0])
        return kind if kind in USERS - {UserKind.SESSION} else None
    return None


def is_around(name: str) -> bool:
    """Return whether an object's name says nothing about its content."""
    return set(_parts_of_name(name)) <= _AROUND


def only_identifies(name: str) -> bool:
    """Return whether a name, such as `id` or `name`, says only that it identifies its object."""
    return set(words(name)) <= _IDENTIFIES


def _parts_of_name(name: str) -> list[str]:
    """Return the words of a name, in the singular and with compounds split."""
    return [part for whole in words(name) for part in _parts(whole)]


def _entity(tables: Mapping[UserKind, frozenset[str]], word: str) -> UserKind | None:
    """Return the kind of user whose table has a word; None: no table does."""
    return next((kind for kind, nouns in tables.items() if word in nouns), None)


def _parts(word: str) -> list[str]:
    """Return a word in the singular, with compounds split in two, as ["user", "id"] of `userids`.

    A word that is in no table stays as it is.
    """
    for form in (word, word.removesuffix("s")):
        if form in _ALL_NOUNS or form in _IDENTIFIES:
            return [form]
        for end in _ENDS:
            start = form.removesuffix(end)
            if start == form:
                continue
            # As in `userid`, or `usersid`.
            for noun in (start, start.removesuffix("s")):
                if noun in _ALL_NOUNS:
                    return [noun, end]
        # As in Matomo's `idvisitor`.
        rest = form.removeprefix("id")
        if rest != form and rest in _ALL_NOUNS:
            return [rest, "id"]
    return [word]
