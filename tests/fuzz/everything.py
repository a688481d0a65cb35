"""All targets by name. A target is made when it is asked for: its seeds take seconds."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from tests.fuzz import events, servers, stored
from tests.fuzz.fuzzing import Target

TARGETS: Mapping[str, Callable[[], Target]] = MappingProxyType(
    {
        "json": events.json_events,
        "json_log": events.json_log,
        **{
            form: partial(events.registered, form)
            for form in ("json_schema", "avro", "protobuf")
        },
        "avro_schemas": partial(
            events.random_schemas, "avro_schemas", events.avro_cases
        ),
        "protobuf_schemas": partial(
            events.random_schemas, "protobuf_schemas", events.protobuf_cases
        ),
        **{
            f"{form}_texts": partial(events.schema_texts, form)
            for form in ("avro", "protobuf")
        },
        "settings": stored.settings,
        "contributions": stored.contributed,
        "state": stored.blocks,
        "source_state": stored.source_state,
        "snapshots": stored.snapshots,
        "check": stored.checked,
        "dashboard": partial(servers.dashboard, None),
        "dashboard_token": partial(servers.dashboard, servers.TOKEN),
        "operator": servers.operator,
    }
)
