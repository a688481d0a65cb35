"""Pay what you get: charges, refusals (also after a restart), and the cost of all answers."""

import re
from typing import Any

import pytest

from tests.mechanisms.one_shot.test_one_shot import COMMON
from tests.mechanisms.small import STREAM, counted, start
from workers.mechanisms.mechanism import Answers
from workers.mechanisms.one_shot.pay import PayState, PayWhatYouGet, PayWhatYouGetConfig
from workers.runtime.errors import BudgetExhausted, HorizonExceeded, StateRefused


def pay(**changes: object) -> PayWhatYouGet:
    values = COMMON | {"k": 3, "kbar": 4, "labels": 10, "queries": 6} | changes
    return PayWhatYouGet(PayWhatYouGetConfig(**values))


def met(mechanism: PayWhatYouGet) -> PayState:
    state: PayState = start(mechanism, ["k"])
    return state


def ask(
    mechanism: PayWhatYouGet,
    state: PayState,
    t: int,
    counts: dict[bytes, int] | None = None,
) -> dict[str, Any]:
    parts = [counted(counts)] if counts else []
    _, answers = mechanism.step(state, t, parts, mechanism.noise(STREAM))
    assert isinstance(answers, Answers)
    return dict(answers.of_key[0])


def test_clear_winners_are_named_in_order_and_charged_by_what_was_returned() -> None:
    """Three clear winners cost three; two plus a level rest also cost three: BOTTOM counts."""
    mechanism = pay()
    for third, labels in ((3000, ["a", "b", "c"]), (1, ["a", "b"])):
        counts = {b"a": 9000, b"b": 6000, b"c": third, b"d": 1, b"e": 1}
        left = {"labels_left": 7, "queries_left": 5}
        expected = {
            "query": "top",
            "labels": labels,
            "complete": len(labels) == 3,
        } | left
        assert ask(mechanism, met(mechanism), 1, counts) == expected


def test_it_refuses_exactly_when_queries_are_used_up_also_for_a_stream_key_without_items() -> (
    None
):
    """An empty answer is data too, so asking must cost the same."""
    mechanism = pay(labels=10, queries=2)
    state = met(mechanism)
    answers = [ask(mechanism, state, t) for t in (1, 2, 3)]
    assert [a.get("labels") for a in answers] == [[], [], None]
    assert answers[2] == {
        "query": "top",
        "refused": True,
        "labels_left": 8,
        "queries_left": 0,
    }


def test_only_what_changed_is_written_and_a_lost_block_is_refused() -> None:
    """A block lost must not become a fresh budget."""
    mechanism = pay(every=2)
    state = met(mechanism)
    assert len(state.changed()) == 1
    left = {"labels_left": 10, "queries_left": 6}
    assert ask(mechanism, state, 1) == {"query": "top", "asked": False} | left
    assert state.changed() == ()
    ask(mechanism, state, 2)
    assert len(state.changed()) == 1
    bare = mechanism.init()
    bare.key_tags = state.key_tags
    with pytest.raises(StateRefused, match="budgets of 0 stream keys of 1"):
        ask(mechanism, bare, 2)
    with pytest.raises(BudgetExhausted):
        state.spend(0, 99)
    with pytest.raises(HorizonExceeded):
        ask(mechanism, state, 65)


def test_a_private_kbar_is_charged_as_a_pick() -> None:
    """002 Lemma 3.1: one more draw of the exponential mechanism a query."""
    mechanism = pay(kbar="private", kbar_max=4)
    state = met(mechanism)
    answer = ask(mechanism, state, 1, {b"a": 9000, b"b": 6000, b"c": 3000})
    assert (answer["labels"], answer["labels_left"]) == (["a", "b", "c"], 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 65}, "every = 65: nothing would ever be asked within horizon = 64"),
        (
            {"k": 1, "kbar": "private", "labels": 1},
            'labels = 1: at least 2 with kbar = "private"',
        ),
        ({"kbar_max": 9}, 'kbar_max = 9: only with kbar = "private"'),
    ],
)
def test_useless_settings_are_refused(changes: dict[str, object], message: str) -> None:
    """A budget too small for a query, or an unread bound, would look effective."""
    with pytest.raises(ValueError, match=re.escape(message)):
        pay(**changes)


def test_a_private_kbar_goes_up_to_1000_unless_said_otherwise() -> None:
    """Writing the default down explicitly must change no noise."""
    assert pay(kbar="private").public() == pay(kbar="private", kbar_max=1000).public()
    assert pay(kbar="private").public() != pay(kbar="private", kbar_max=999).public()
    assert pay(k=1, kbar="private", labels=2, every=64).config.labels == 2
