"""Normal numbers from words: their proved errors, against mpmath, and planted faults."""

import math
from decimal import localcontext
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from mpmath import mp

from workers.arrays.types import Floats, Words
from workers.mechanisms.noise import normal

BITS = 200


@cache
def tail_inverse(p: Fraction) -> mpmath.mpf:
    """Return Q^-1(p) to `BITS` bits; 1 - 2p needs as many more as p has zeros, once each way."""
    with mp.workprec(BITS + 2 * (p.denominator // p.numerator).bit_length()):
        ratio = mpmath.mpf(p.numerator) / p.denominator
        return mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * ratio)


def remainder(row: int, degree: int) -> float:
    """Return the bound on a part's remainder; see `normal`."""
    with localcontext(prec=40):
        width, center = normal.part(row)
        z, density = normal._newton(center - width / 2, 1)
        polynomials = normal._derivatives(degree + 1)
        return float(normal._taylor(polynomials, z, width / 2 / density)[-1])


def words_of(numbers: list[int]) -> Words:
    words = np.zeros((1, len(numbers), 2), dtype=np.uint64)
    words[0, :, 0] = np.array(numbers, dtype=np.uint64)
    return words


def some_words(least: int, count: int) -> list[int]:
    """Return words of every octave of v from `least` on: random ones, and the ends of parts."""
    generator = np.random.default_rng(3)
    numbers = []
    for octave in range(least.bit_length() - 1, 63):
        low = 1 << octave
        part = max(1, (1 << octave) >> 6)
        numbers += [low, low + part - 1, low + part, 2 * low - 1]
        numbers += [low + int(generator.integers(low)) for _ in range(count)]
    return [2 * v + int(generator.integers(2)) for v in numbers]


def rough(words: Words, table: Floats) -> Floats:
    return np.array([normal.rough(word, table) for word in words[0, :, 0]])


def fine(words: Words, table: Floats) -> Floats:
    out = np.zeros(words.shape[1])
    normal.add_fine(words, np.zeros(1, dtype=np.int64), np.ones(1), table, out)
    return out


KERNELS = {
    "rough": (rough, normal.ROUGH_ERROR, normal.ROUGH_LEAST),
    "fine": (fine, normal.FINE_ERROR, normal.FINE_LEAST),
}


def largest_error(name: str, table: Floats) -> float:
    """Return the largest distance to a number that the word's further bits allow."""
    function, _, least = KERNELS[name]
    numbers = some_words(least, 12)
    worst = 0.0
    for word, found in zip(
        numbers, function(words_of(numbers), table).tolist(), strict=True
    ):
        v = word >> 1
        sign = -1 if word & 1 else 1
        for end in (v, v + 1):
            exact = sign * tail_inverse(Fraction(end, 1 << 64))
            worst = max(worst, float(abs(exact - mpmath.mpf(found))))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_numbers_are_within_their_error_whatever_the_further_bits(name: str) -> None:
    assert largest_error(name, normal.table()) <= KERNELS[name][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "column"), [("rough", 3), ("rough", 0), ("fine", 5), ("fine", 1)]
)
def test_a_wrong_coefficient_is_noticed(name: str, column: int) -> None:
    wrong = normal.table().copy()
    wrong[:, column] *= 1.1 if column else 1 + 1e-9
    assert largest_error(name, wrong) > KERNELS[name][1]


def test_the_parts_of_the_error_add_up_to_less_than_is_stated() -> None:
    """The proof's sum, with the remainder of every octave's lowest part, where it is largest."""
    rows = range(0, len(normal.table()) - 1, 64)
    assert remainder(0, 3) > remainder(31, 3) > remainder(63, 3)
    for degree, stated, least in (
        (3, *KERNELS["rough"][1:]),
        (6, *KERNELS["fine"][1:]),
    ):
        rest = max(remainder(row, degree) for row in rows)
        largest = float(tail_inverse(Fraction(least, 1 << 64)))
        assert largest <= normal.LARGEST
        # Mills's ratio below 2^52; above it 2^-52 at most.
        unknown = max(1 / (least * largest), 2.0**-52 * 1.26)
        assert rest + unknown + (13 + 2.52) * 2.0**-53 < stated


def test_small_words_are_raised_and_listed() -> None:
    words = np.random.default_rng(1).integers(
        1 << 40, 1 << 64, (50, 2), dtype=np.uint64
    )
    words[7, 1] = 5
    words[20, 0] = 2 * normal.ROUGH_LEAST - 1
    words[30] = 2 * normal.ROUGH_LEAST
    before = words.copy()
    found = np.zeros(50, dtype=np.int64)
    assert normal.raise_small(words, found) == 2
    assert found[:2].tolist() == [7, 20]
    others = np.delete(np.arange(50), [7, 20])
    assert (words[others] == before[others]).all()
    assert (words >= 2 * normal.ROUGH_LEAST).all()


def test_a_word_too_small_for_floats_gives_no_number() -> None:
    out = fine(
        words_of([2 * normal.FINE_LEAST - 1, 2 * normal.FINE_LEAST]), normal.table()
    )
    assert math.isnan(out[0])
    assert math.isfinite(out[1])


@pytest.mark.parametrize("digits", [15, 40, 120])
def test_the_inverse_is_proved_to_its_digits(digits: int) -> None:
    for p in (
        Fraction(1, 2),
        Fraction(1, 3),
        Fraction(1, 10**9),
        Fraction(7, 1 << 127),
    ):
        with mp.workprec(1000):
            error = abs(mpmath.mpf(str(normal.inverse(p, digits))) - tail_inverse(p))
            assert error <= mpmath.mpf(10) ** -min(digits, 55)


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 0.3, 0.01, 1e-9, 2.5e-17, 1e-60, 1e-300])
def test_a_quantile_is_rounded_up(p: float) -> None:
    exact = tail_inverse(Fraction(p))
    found = normal.quantile_up(p)
    assert exact <= found <= exact + max(1, exact) * 1e-15


def test_rounding_adds_a_twelfth_unless_there_is_hardly_any_noise() -> None:
    for variance in (1e-4, 0.02, 0.1, 0.3, 0.99, 1.01, 40.0):
        sd = math.sqrt(variance)
        exact = sum(
            (2 * n - 1) * float(mpmath.erfc((n - 0.5) / sd / mpmath.sqrt(2)))
            for n in range(1, 90)
        )
        assert normal.rounded_variance(variance) == pytest.approx(exact, abs=1e-6)


def test_compiled_and_plain_code_give_the_same_bits() -> None:
    words = words_of(some_words(normal.FINE_LEAST, 3))
    out = np.zeros(words.shape[1])
    halves = np.zeros(1, dtype=np.int64)
    ones = np.ones(1)
    with np.errstate(over="ignore"):
        normal.add_fine.py_func(words, halves, ones, normal.table(), out)  # type: ignore[attr-defined]
    assert (out == fine(words, normal.table())).all()
