"""Boards without epochs against the rule in plain Python, through restarts and forgetting."""

import random

import pytest

from tests.mechanisms.running.boards import Board, Model, sliding, stream
from workers.mechanisms.config.sums import parse_sum

SUM = parse_sum({"field": "x", "from": -2, "to": 0, "step": 0.5, "share": 0.3})


@pytest.mark.parametrize("seed", range(2))
def test_releases_are_those_of_the_rule(seed: int) -> None:
    rng = random.Random(seed)
    mechanism = sliding(sum=SUM, total_share=0.2)
    board = Board(mechanism)
    model = Model(mechanism)
    for t, tick in enumerate(stream(rng, 400, 30), 1):
        assert board.step(t, tick, rng.randint(1, 3)) == model.step(t, tick), t
        if rng.random() < 0.3:
            board.store()
        if rng.random() < 0.2:
            board.restart()
    assert model.left
