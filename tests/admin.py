"""Admin clients per cluster and principal, kept until the process ends: see `Connection.admin`."""

import atexit
import json
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient

from workers.kafka.clients import Connection

_CLIENTS: dict[str, AdminClient] = {}
_OPEN = ExitStack()
atexit.register(_OPEN.close)


def admin_of(connection: Connection) -> AdminClient:
    """Return the client of a connection, which must not be closed."""
    name = json.dumps([connection.bootstrap, *sorted(connection.client.items())])
    if name not in _CLIENTS:
        _CLIENTS[name] = _OPEN.enter_context(connection.quiet_admin([]))
    return _CLIENTS[name]


def delete_topics(admin: AdminClient, *prefixes: str) -> None:
    """Delete the topics whose names begin with one of these."""
    there = admin.list_topics(timeout=60).topics
    # an empty list would be refused
    if topics := [topic for topic in there if topic.startswith(prefixes)]:
        for deleted in admin.delete_topics(topics).values():
            deleted.result()
