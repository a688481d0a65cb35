"""The states of a transactional id, as its producer in this process knows them: a table, no I/O.

A broker tells producers of one transactional id apart by their epoch, and the transactions of one
epoch not at all: librdkafka sends EndTxn v1, so an EndTxn that the network held back ends whichever
transaction is open when it arrives (KIP-890 mends this, and librdkafka does not have it yet). An
EndTxn of an older epoch is refused. So after an EndTxn that may still be on its way the id is
`TAINTED`, and no transaction begins before it has a new epoch:

    NEW ──INITIALIZED──▶ READY ──BEGIN──▶ OPEN ──COMMIT──▶ COMMITTING ──COMMITTED──▶ READY
                                           │                 │      │
                                           └─────ABORT───────┤      └──COMMITTED_IN_DOUBT──┐
                                                             ▼                             ▼
                                                         ABORTING ──────ABORTED──────▶ TAINTED
                                                                                           │
    READY ◀──CONFIRMED── UNCONFIRMED ◀──INITIALIZED── RENEWING ◀───────────RENEW───────────┘

A new epoch also fences an owner that came in between and that nobody here has heard of. Therefore
`UNCONFIRMED`: the next transaction begins after it is known that no other owner has committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """What a transactional id allows next."""

    NEW = "not initialized"
    READY = "ready"
    OPEN = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    TAINTED = "in need of a new epoch"
    RENEWING = "getting a new epoch"
    UNCONFIRMED = "under a new epoch, without knowing of other owners"
    FAILED = "failed"
    CLOSED = "closed"


class Event(Enum):
    """What was done, or what became of it."""

    INITIALIZED = "InitProducerId answered: older epochs are fenced, their transactions ended"
    BEGIN = "a transaction begins"
    COMMIT = "EndTxn(commit) is about to be sent"
    COMMITTED = "EndTxn(commit) was sent once and answered"
    COMMITTED_IN_DOUBT = "EndTxn(commit) was answered, and may have been sent more than once"
    ABORT = "EndTxn(abort) is about to be sent, perhaps after an EndTxn(commit)"
    ABORTED = "EndTxn(abort) was answered"
    RENEW = "the producer was dropped to make one with a new epoch"
    CONFIRMED = "no other owner has committed before the new epoch began"
    FAIL = "fenced, refused, or without an answer"
    CLOSE = "the owner lets go"


_ENDS: Mapping[Event, State] = MappingProxyType(
    {Event.FAIL: State.FAILED, Event.CLOSE: State.CLOSED}
)

#: What each event leads to in each state; an event that a state does not list is refused.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(
    {
        State.NEW: MappingProxyType({Event.INITIALIZED: State.READY, **_ENDS}),
        State.READY: MappingProxyType({Event.BEGIN: State.OPEN, **_ENDS}),
        State.OPEN: MappingProxyType(
            {Event.COMMIT: State.COMMITTING, Event.ABORT: State.ABORTING, **_ENDS}
        ),
        State.COMMITTING: MappingProxyType(
            {
                Event.COMMITTED: State.READY,
                Event.COMMITTED_IN_DOUBT: State.TAINTED,
                Event.ABORT: State.ABORTING,
                **_ENDS,
            }
        ),
        # Nothing is aborted in normal running, so an abort is never worth the question whether its
        # EndTxn, or that of the commit before it, was sent twice.
        State.ABORTING: MappingProxyType({Event.ABORTED: State.TAINTED, **_ENDS}),
        State.TAINTED: MappingProxyType({Event.RENEW: State.RENEWING, **_ENDS}),
        State.RENEWING: MappingProxyType({Event.INITIALIZED: State.UNCONFIRMED, **_ENDS}),
        State.UNCONFIRMED: MappingProxyType({Event.CONFIRMED: State.READY, **_ENDS}),
        # Only a new owner goes on, who fences this one and reads what was committed.
        State.FAILED: MappingProxyType({Event.FAIL: State.FAILED, Event.CLOSE: State.CLOSED}),
        State.CLOSED: MappingProxyType({Event.CLOSE: State.CLOSED}),
    }
)


class NotAllowed(RuntimeError):
    """An event that the state does not allow: a defect of this program."""


def after(state: State, event: Event) -> State:
    """Return the state that `event` leads to. `NotAllowed`: it must not happen in `state`."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise NotAllowed(f"{event.name} while {state.value}") from None
