"""Topics of well-known analytics tools and platforms, with invented people and real shapes."""

import random
from collections.abc import Callable

from tests.commands.init.topics import NOW_MS, Event, Keyed, iso

EVENTS = 1_000
#: Of 900 people most have one event, so few repetitions show which fields name them.
PEOPLE = 900
PAGES = ("/", "/cart", "/checkout", "/help", "/search", "/tea", "/cups")
COUNTRIES = ("DE", "FR", "US", "PE", "JP")


def code(*parts: object) -> str:
    return f"{random.Random(repr(parts)).getrandbits(64):016x}"


def ga4(rng: random.Random, person: int, at: int) -> Event:
    session = 1_795_000_000 + person * 7
    return {
        "event_timestamp": at * 1_000,
        "event_name": rng.choice(["page_view", "scroll", "purchase", "add_to_cart"]),
        "event_params": [
            {"key": "ga_session_id", "value": {"int_value": session}},
            {"key": "ga_session_number", "value": {"int_value": 1 + person % 3}},
            {"key": "page_location", "value": {"string_value": rng.choice(PAGES)}},
            {"key": "user_code", "value": {"string_value": f"member-{person}"}},
        ],
        "user_id": None if person % 3 else f"member-{person}",
        "user_pseudo_id": f"{person * 7919}.{1_700_000_000 + person}",
        "user_first_touch_timestamp": (NOW_MS - 10**9 - person * 1_000) * 1_000,
        "device": {
            "category": rng.choice(["mobile", "desktop"]),
            "advertising_id": code("ad", person),
            "vendor_id": code("vendor", person),
        },
        "geo": {"country": rng.choice(COUNTRIES), "city": f"City {rng.randrange(40)}"},
        "stream_id": "12345",
    }


def segment(rng: random.Random, person: int, at_ms: int) -> Event:
    page = rng.choice(PAGES)
    return {
        "type": "track",
        "event": rng.choice(["Product Viewed", "Order Completed", "Product Added"]),
        "messageId": f"ajs-{rng.getrandbits(64):x}",
        "anonymousId": code("anonymous", person),
        "userId": f"u-{person}",
        "properties": {
            "product": f"sku-{int(rng.triangular(0, 60, 0))}",
            "currency": "EUR",
        },
        "context": {
            "ip": f"10.0.{person // 250}.{person % 250}",
            "locale": rng.choice(["de-DE", "en-US"]),
            "page": {"path": page, "url": f"https://shop.example{page}"},
            "traits": {
                "email": f"p{person}@a.example",
                "avatar": f"https://a.example/{person}",
            },
            "device": {"id": code("device", person), "adTrackingEnabled": True},
        },
        "timestamp": iso(at_ms),
    }


def snowplow(rng: random.Random, person: int, at: int) -> Event:
    page = rng.choice(PAGES)
    return {
        "app_id": "shop",
        "collector_tstamp": iso(at),
        "event": rng.choice(["page_view", "page_ping", "struct"]),
        "event_id": f"{rng.getrandbits(128):032x}",
        "user_id": f"{person}@a.example",
        "user_ipaddress": f"10.1.{person // 250}.{person % 250}",
        "user_fingerprint": str(person * 104_729),
        "domain_userid": code("domain", person),
        "network_userid": code("network", person),
        "domain_sessionid": code("session", person),
        "domain_sessionidx": 1 + person % 20,
        "page_urlpath": page,
        "page_url": f"https://shop.example{page}",
        "geo_country": rng.choice(COUNTRIES),
        "br_family": rng.choice(["Firefox", "Chrome", "Safari"]),
    }


def mixpanel(rng: random.Random, person: int, at: int) -> Event:
    return {
        "event": rng.choice(["Signup", "Song Played", "Song Liked"]),
        "properties": {
            "time": at // 1_000,
            "distinct_id": f"{person:08d}",
            "$device_id": code("mixpanel", person),
            "$user_id": f"{person:08d}",
            "$insert_id": code("insert", at, person),
            "$city": f"City {rng.randrange(30)}",
            "mp_country_code": rng.choice(COUNTRIES),
            "$screen_name": rng.choice(["Home", "Player", "Library"]),
            "song": f"Song {int(rng.triangular(0, 90, 0))}",
        },
    }


def github(rng: random.Random, person: int, at_ms: int) -> Event:
    login = f"dev-{person}"
    repo = rng.randrange(120)
    name = f"org{repo % 9}/repo{repo}"
    return {
        "id": str(40_000_000_000 + at_ms % 10**9),
        "type": rng.choice(["PushEvent", "WatchEvent", "IssuesEvent", "ForkEvent"]),
        "actor": {
            "id": 1_000 + person,
            "login": login,
            "display_login": login,
            "gravatar_id": "",
            "url": f"https://api.example/users/{login}",
            "avatar_url": f"https://avatars.example/u/{1_000 + person}?",
        },
        "repo": {
            "id": 9_000 + repo,
            "name": name,
            "url": f"https://api.example/repos/{name}",
        },
        "payload": {"ref": rng.choice(["refs/heads/main", "refs/heads/dev"])},
        "public": True,
        "created_at": iso(at_ms),
    }


def shopify(rng: random.Random, person: int, at_ms: int) -> Event:
    def line() -> Event:
        product = int(rng.triangular(0, 80, 0))
        title = f"Product {product}"
        return {
            "product_id": 70_000 + product,
            "title": title,
            "quantity": rng.randrange(1, 4),
        }

    first = f"First{person}"
    last = f"Last{person}"
    address = {
        "name": f"{first} {last}",
        "address1": f"{person} Road",
        "country_code": "DE",
    }
    return {
        "id": 450_000_000 + at_ms % 10**9,
        "order_number": at_ms % 10**8,
        "email": f"p{person}@a.example",
        "phone": f"+49151{person:07d}",
        "browser_ip": f"10.2.{person // 250}.{person % 250}",
        "created_at": iso(at_ms),
        "currency": rng.choice(["EUR", "USD"]),
        "financial_status": rng.choice(["paid", "pending"]),
        "customer": {
            "id": 207_119_551 + person,
            "first_name": first,
            "last_name": last,
            "admin_graphql_api_id": f"gid://shopify/Customer/{207_119_551 + person}",
        },
        "billing_address": address,
        "shipping_address": address | {"city": f"City {rng.randrange(30)}"},
        "line_items": [line() for _ in range(rng.randrange(1, 4))],
    }


def debezium(rng: random.Random, person: int, at: int) -> Event:
    columns = ("customer_id", "email", "product", "status")
    fields = [{"field": name, "type": "string", "optional": False} for name in columns]
    row = {
        "customer_id": person,
        "email": f"p{person}@a.example",
        "product": f"sku-{int(rng.triangular(0, 50, 0))}",
        "status": rng.choice(["new", "paid", "sent"]),
    }
    source = {"db": "shop", "table": "orders", "lsn": at % 10**9, "txId": at % 10**7}
    payload = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": at}
    return {"schema": {"type": "struct", "fields": fields}, "payload": payload}


Shape = Callable[[random.Random, int, int], Event]
SHAPES: dict[str, Shape] = {
    shape.__name__: shape
    for shape in (ga4, segment, snowplow, mixpanel, github, shopify, debezium)
}


def topic(shape: Shape, people: int = PEOPLE) -> list[Keyed]:
    rng = random.Random(shape.__name__)
    begin = NOW_MS - 6 * 3_600_000

    def person(i: int) -> int:
        return i if i < people else rng.randrange(people)

    order = [person(i) for i in range(EVENTS)]
    rng.shuffle(order)
    gap = 6 * 3_600_000 // EVENTS
    return [(None, shape(rng, one, begin + gap * i)) for i, one in enumerate(order)]
