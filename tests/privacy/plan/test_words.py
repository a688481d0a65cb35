"""The words of a promise hold for every epsilon and delta; see dashboard/test_page_words.py."""

import math
from fractions import Fraction

import pytest

from workers.privacy.phrasing import (
    WORDS,
    can_do,
    cautions,
    factor,
    grade,
    guesses_right,
    is_void,
    measures,
    one_in,
    verdict,
)

EPSILONS = sorted(
    {
        1e-3,
        0.1,
        0.5,
        1.0,
        1.41,
        4.0,
        5.0,
        20.0,
        1e3,
        *(10 ** (i / 16) for i in range(-48, 49)),
    }
)
DELTAS = sorted(
    {
        1e-9,
        1e-5,
        0.01,
        0.05,
        0.5,
        0.999,
        1.0,
        1.5,
        *(10 ** (i / 8) for i in range(-96, 3)),
    }
)
GRID = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
WHETHER = "any one event was counted"
NAMES = {"million": 6, "billion": 9, "trillion": 12, "quadrillion": 15}


def number(text: str) -> Fraction:
    if text.startswith("10^"):
        return Fraction(10) ** int(text[3:])
    first, _, name = text.partition(" ")
    value = Fraction(1) if first == "a" else Fraction(first.replace(",", ""))
    return value * 10 ** NAMES[name] if name else value


def e_to(epsilon: float) -> Fraction:
    """Return e^epsilon, rounded up by less than one part in 1e14."""
    whole = math.floor(epsilon)
    e = Fraction(271828182845904524, 10**17)
    return e**whole * Fraction(math.exp(epsilon - whole)) * (1 + Fraction(1, 10**15))


def test_no_figure_promises_more_than_holds_and_none_much_less() -> None:
    """Rounding e^epsilon or 1/delta to the nearest would state a false promise."""
    for epsilon in EPSILONS:
        said = number(factor(epsilon))
        true = e_to(epsilon)
        assert true * (1 - Fraction(1, 10**12)) <= said, epsilon
        assert said <= true * Fraction(102, 100) or factor(epsilon).startswith("10^"), (
            epsilon
        )
        assert said <= true * 11
    for delta in (delta for delta in DELTAS if delta < 1):
        above, _, below = one_in(delta).partition(" in ")
        said = Fraction(above) / number(below)
        assert (
            Fraction(delta) * (1 - Fraction(1, 10**8)) <= said <= Fraction(delta) * 11
        ), delta
    for epsilon, delta in GRID:
        right = guesses_right(epsilon, min(delta, 0.9999))
        bound = 1 - (1 - min(delta, 0.9999)) / (1 + math.exp(min(epsilon, 700.0)))
        assert right is None or bound * 100 <= float(right) * (1 + 1e-9)
        assert right is not None or bound > 0.9999
        assert right is None or float(right) <= bound * 100 + 0.1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-3), (3.0, 0.2)])
def test_right_guesses_are_those_of_the_worst_mechanism(
    epsilon: float, delta: float
) -> None:
    """Randomised response with full disclosure of chance delta attains it; half and double fail."""
    # Two of the four answers reveal all; the best guess takes each answer's likelier world.
    told = Fraction(delta)
    truth = Fraction(math.exp(epsilon) / (1 + math.exp(epsilon)))
    best = told + (1 - told) * truth
    said = 1 - (1 - delta) / (1 + math.exp(epsilon))
    assert float(best) == pytest.approx(said, abs=1e-12)
    if delta:
        for wrong in (delta / 2, delta * 2):
            assert abs(1 - (1 - wrong) / (1 + math.exp(epsilon)) - float(best)) > 1e-5


def test_every_sentence_is_one_that_its_figures_bear_out() -> None:
    """At epsilon 20 and delta a half the page once claimed that nobody could tell."""
    for epsilon, delta in GRID:
        words = verdict(epsilon, delta, WHETHER)
        figures = " ".join(measures(epsilon, delta))
        warned = " ".join(cautions(epsilon, delta, "event"))
        weak = epsilon > 5 or delta > 1e-5
        assert (
            bool(warned) == weak == (grade(epsilon, delta) in ("weak", "void", "none"))
        )
        assert ("nothing is promised, as delta is 1 or more" in words) == (delta >= 1)
        if delta >= 1:
            assert not figures and "delta is 1 or more: nothing is promised" in warned
            continue
        assert can_do(epsilon).rstrip(",") in words
        assert "at even odds, " in words.lower()
        right = guesses_right(epsilon, delta)
        stated = (
            "nearly every time" if right is None else f"at most {right} times in 100"
        )
        assert f"right {stated} instead of 50" in words
        # A large chance comes first, and the remaining promise covers the other cases alone.
        assert words.startswith(f"may, with a chance of up to {one_in(delta)}, ") == (
            delta > 1e-5
        )
        assert ("Otherwise" in words) == (delta > 1e-5)
        promised = "next to nothing is promised" in words
        assert promised == (epsilon > 20 or delta >= 0.01) == is_void(epsilon, delta)
        assert (
            f"{factor(epsilon)} times" in figures
            and f"chance of {one_in(delta)}." in figures
        )


#: The least and the most right guesses of 100 for which the words are fair, by our reading of them.
FAIR = {
    "only slightly better than by a coin toss": (50, 55),
    "better than by a coin toss, but not reliably,": (55, 75),
    "right most of the time": (70, 96),
    "nearly sure": (95, 99.5),
    "practically sure": (99, 100),
    "can be sure": (99.9, 100),
}


def test_words_are_those_of_the_odds() -> None:
    """At epsilon 1 (73 of 100) it once said "only a little", at 3 (95 of 100) "cannot become sure"."""
    for words in FAIR:
        assert sum(words in said for _, said in WORDS) == 1
    for epsilon in EPSILONS:
        [(least, most)] = [
            range_ for words, range_ in FAIR.items() if words in can_do(epsilon)
        ]
        assert least <= 100 * (1 - 1 / (1 + math.exp(min(epsilon, 700.0)))) <= most, (
            epsilon
        )


def test_no_epsilon_at_all_is_no_promise() -> None:
    for delta in (1e-9, 1.0):
        assert grade(None, delta) == "none" and is_void(None, delta)
        assert "nothing is promised" in verdict(None, 1.0, WHETHER) and not measures(
            None, delta
        )
    assert grade(math.inf, 1e-9) == "none"
