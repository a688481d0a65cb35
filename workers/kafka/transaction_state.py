"""State machine of a transactional id, as seen by its producer in this process; no I/O.

A broker distinguishes producers of one transactional id by epoch, but not the transactions of one
epoch. EndTxn, the request to commit or abort (v1 in librdkafka), does not name its transaction, so
a delayed one ends whichever is open when it arrives, unless its epoch is older. (KIP-890 fixes
this; librdkafka does not implement it yet.) So while an EndTxn may be in flight the id is
`TAINTED`, and no transaction begins before a new epoch:

    NEW ──INITIALIZED──▶ READY ──BEGIN──▶ OPEN ──COMMIT──▶ COMMITTING ──COMMITTED──▶ READY
                                           │                 │      │
                                           └─────ABORT───────┤      └──COMMITTED_IN_DOUBT──┐
                                                             ▼                             ▼
                                                         ABORTING ──────ABORTED──────▶ TAINTED
                                                                                           │
    READY ◀──CONFIRMED── UNCONFIRMED ◀──INITIALIZED── RENEWING ◀───────────RENEW───────────┘

A new epoch also fences an owner that took over in between, unknown to this process. Hence
`UNCONFIRMED`: no transaction begins until it is certain that no other owner has committed.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """States of the drawing above; FAILED and CLOSED are final. Values are for messages."""

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
    """What the producer does or learns; the values are only explanations."""

    INITIALIZED = (
        "InitProducerId answered: older epochs are fenced, their transactions ended"
    )
    BEGIN = "a transaction begins"
    COMMIT = "EndTxn(commit) is about to be sent"
    COMMITTED = "EndTxn(commit) was sent once and answered"
    COMMITTED_IN_DOUBT = (
        "EndTxn(commit) was answered, and may have been sent more than once"
    )
    ABORT = "EndTxn(abort) is about to be sent, perhaps after an EndTxn(commit)"
    ABORTED = "EndTxn(abort) was answered"
    RENEW = "the producer was dropped to make one with a new epoch"
    CONFIRMED = "no other owner has committed before the new epoch began"
    FAIL = "fenced, refused, or without an answer"
    CLOSE = "the owner lets go"


def _transitions() -> Mapping[State, Mapping[Event, State]]:
    """Return the next state by state and event: the drawing above, with FAIL and CLOSE."""
    transitions: dict[State, dict[Event, State]] = {
        State.NEW: {Event.INITIALIZED: State.READY},
        State.READY: {Event.BEGIN: State.OPEN},
        State.OPEN: {Event.COMMIT: State.COMMITTING, Event.ABORT: State.ABORTING},
        State.COMMITTING: {
            Event.COMMITTED: State.READY,
            Event.COMMITTED_IN_DOUBT: State.TAINTED,
            Event.ABORT: State.ABORTING,
        },
        # Aborts are rare: not worth checking whether an EndTxn was sent twice.
        State.ABORTING: {Event.ABORTED: State.TAINTED},
        State.TAINTED: {Event.RENEW: State.RENEWING},
        State.RENEWING: {Event.INITIALIZED: State.UNCONFIRMED},
        State.UNCONFIRMED: {Event.CONFIRMED: State.READY},
        # Only a new owner continues: it fences this one and reads the committed state.
        State.FAILED: {},
    }
    for by_event in transitions.values():
        by_event |= {Event.FAIL: State.FAILED, Event.CLOSE: State.CLOSED}
    # Nothing leaves it, so it comes after these.
    transitions[State.CLOSED] = {Event.CLOSE: State.CLOSED}
    return MappingProxyType(
        {state: MappingProxyType(by_event) for state, by_event in transitions.items()}
    )


TRANSITIONS = _transitions()


class InvalidTransition(RuntimeError):
    """An event that the state does not allow: a defect of this program."""


def next_state(state: State, event: Event) -> State:
    """Return the state after `event`; InvalidTransition, a defect, if the table has none."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InvalidTransition(f"{event.name} while {state.value}") from None
