"""The state table of a transactional id: its transitions, and no others."""

import re
from itertools import product
from pathlib import Path

import pytest

from workers.kafka import transaction, transaction_state
from workers.kafka.transaction_state import (
    TRANSITIONS,
    Event,
    InvalidTransition,
    State,
    next_state,
)

ENDS = {State.FAILED, State.CLOSED}
# Allowed events of every state, besides failing and closing, in plain words.
ALLOWED = {
    State.NEW: {Event.INITIALIZED},
    State.READY: {Event.BEGIN},
    State.OPEN: {Event.COMMIT, Event.ABORT},
    State.COMMITTING: {Event.COMMITTED, Event.COMMITTED_IN_DOUBT, Event.ABORT},
    State.ABORTING: {Event.ABORTED},
    State.TAINTED: {Event.RENEW},
    State.RENEWING: {Event.INITIALIZED},
    State.UNCONFIRMED: {Event.CONFIRMED},
    State.FAILED: set(),
    State.CLOSED: set(),
}


def reach(state: State, but: State | None = None) -> set[State]:
    """Return the states reachable by any events, without passing through `but`."""
    found: set[State] = set()
    ahead = {state}
    while ahead:
        now = ahead.pop()
        for then in TRANSITIONS[now].values():
            if then not in found and then is not but:
                found.add(then)
                ahead.add(then)
    return found


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_event_in_every_state_is_allowed_or_refused(
    state: State, event: Event
) -> None:
    """No event outside the table may pass silently.

    Only in `READY`, where no EndTxn may be in flight, a transaction begins. Every state can fail and
    be closed, and stays so: the next owner continues from the last commit.
    """
    if event is Event.CLOSE or (event is Event.FAIL and state is not State.CLOSED):
        assert next_state(state, event) is (
            State.CLOSED if event is Event.CLOSE else State.FAILED
        )
    elif event in ALLOWED[state]:
        assert next_state(state, event) not in ENDS
    else:
        with pytest.raises(
            InvalidTransition, match=f"{event.name} while {re.escape(state.value)}"
        ):
            next_state(state, event)


@pytest.mark.parametrize(
    ("event", "state"),
    [(Event.COMMITTED_IN_DOUBT, State.COMMITTING), (Event.ABORTED, State.ABORTING)],
)
def test_an_end_that_may_come_again_taints(event: Event, state: State) -> None:
    """That is every abort, and a commit not certainly sent once."""
    assert [each for each in State if event in TRANSITIONS[each]] == [state]
    assert next_state(state, event) is State.TAINTED


def test_a_tainted_id_begins_nothing_before_a_confirmed_new_epoch() -> None:
    """Neither the old epoch nor an unchecked new one may be used."""
    for needed in (State.RENEWING, State.UNCONFIRMED):
        assert not {State.READY, State.OPEN} & reach(State.TAINTED, but=needed)
    assert State.OPEN in reach(State.TAINTED)


def test_the_drawing_shows_the_table() -> None:
    """A picture that differs from the code is worse than none."""
    words = set(re.findall(r"[A-Z_]{3,}", transaction_state.__doc__ or ""))
    drawn = {state.name for state in State if state not in ENDS} | {
        event.name for event in Event
    }
    assert drawn - words <= {Event.FAIL.name, Event.CLOSE.name}


def test_nothing_but_the_table_changes_the_state() -> None:
    """`Transactions` assigns its state in one place."""
    source = Path(transaction.__file__).read_text()
    assert re.findall(r"self\._state = (.*)", source) == [
        "State.NEW",
        "next_state(self._state, event)",
    ]
