"""A short run of every target, with the same inputs each time, and faults planted that it must find.

The long run is `python -m tests.fuzz --inputs 1000000`.
"""

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.stage import Run
from tests.contract.test_purity import stream_of
from tests.contract.variants import VARIANTS, built
from tests.fuzz import fuzzing
from tests.fuzz.__main__ import main
from tests.fuzz.everything import TARGETS
from tests.fuzz.fuzzing import Target, fuzz
from tests.fuzz.mutations import Mutator
from workers.events.json import Json
from workers.mechanisms.order_statistics.engine import OrderStatisticState
from workers.pipeline import contributions
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow

INPUTS = 300
SECONDS = 0.6


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_more_than_refused(name: str) -> None:
    target = TARGETS[name]()
    begun = time.monotonic()
    try:
        result = fuzz(target, INPUTS, 1, lambda: time.monotonic() > begun + SECONDS)
    finally:
        target.close()
    assert not result.findings, "\n".join(result.lines())


def run(target: Target, inputs: int = 2_000) -> list[str]:
    return [found.what for found in fuzz(target, inputs, 1).findings.values()]


def test_a_parser_that_raises_on_a_rare_byte_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = contributions._DECODER.decode

    class Planted:
        def decode(self, value: bytes) -> Any:
            if b"\xfe" in value[-9:]:
                raise KeyError("planted")
            return decode(value)

    monkeypatch.setattr(contributions, "_DECODER", Planted())
    [what] = run(TARGETS["contributions"]())
    assert what.startswith("KeyError") and "contributions.py" in what


def test_a_parser_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS_MAX", 0.05)
    decode = contributions._DECODER.decode

    class Planted:
        def decode(self, value: bytes) -> Any:
            while b"\x7f" in value[-9:]:
                pass
            return decode(value)

    monkeypatch.setattr(contributions, "_DECODER", Planted())
    found = fuzz(TARGETS["contributions"](), 1_200, 1).findings
    assert list(found) == ["hung"]
    assert b"\x7f" in found["hung"].data[-9:]


def test_readers_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the general reader reads a field's digits otherwise."""
    target = TARGETS["json"]()
    decoder = Json.decoder

    def planted(self: Json, *given: Any) -> Any:
        decode = decoder(self, *given)
        return lambda row: {} if len(given[0]) % 16 == 7 else decode(row)

    monkeypatch.setattr(Json, "decoder", planted)
    found = run(target, 100)
    assert any(what.startswith("differs") for what in found)


def test_inputs_that_fail_only_together_are_found() -> None:
    def fails(some: Sequence[bytes]) -> list[str]:
        if some[0] != some[-1]:
            raise LookupError("planted")
        return ["read"] * len(some)

    target = Target("batch", lambda data: "read", [b"a", b"b"], run_many=fails, batch=8)
    [what] = run(target, 40)
    assert what.startswith("only in a batch") and "LookupError" in what


def test_memory_that_grows_is_found() -> None:
    held: list[bytearray] = []

    def grows(data: bytes) -> str:
        if data.endswith(b"x"):
            held.append(bytearray(b"x" * (3 << 20)))
        return "read"

    [what] = run(Target("grows", grows, [b"ax", b"b"], memory_bytes=32 << 20), 1_000)
    assert what.startswith("the process grew")


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    def seen(seed: int) -> list[bytes]:
        inputs: list[bytes] = []

        def run(data: bytes) -> str:
            inputs.append(data)
            return f"{len(data) % 7}"

        fuzz(Target("seen", run, [b'{"a": 1}', b"[2, 3]"]), 500, seed)
        return inputs

    assert seen(1) == seen(1) != seen(2)


def test_every_change_keeps_within_the_longest_input() -> None:
    mutator = Mutator(random.Random(1), [b"token"], 5_000)
    made = [mutator.mutated([b'{"a": [1, 2.5]}']) for _ in range(5_000)]
    assert max(map(len, made)) <= 5_000
    assert len(set(made)) > 3_000


@pytest.fixture
def one_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(data: bytes) -> str:
        if b"\xff" in data:
            raise LookupError("planted")
        return "read"

    known = {"planted": lambda: Target("planted", raises, [b"abc"])}
    monkeypatch.setattr("tests.fuzz.everything.TARGETS", known)


@pytest.mark.usefixtures("one_target")
def test_a_finding_is_printed_with_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--inputs", "2000"]) == 1
    printed = capsys.readouterr().out
    command = next(
        line for line in printed.splitlines() if "python -m tests.fuzz" in line
    )
    assert "FOUND at input" in printed and "LookupError" in printed
    again = [word.strip("'") for word in command.split()[3:]]
    assert main(again) == 1
    assert main(["--hex", "61"]) == 0


def test_an_unreadable_request_at_the_operators_port_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any port scanner would fill the worker's log, and write its own text into it."""
    target = TARGETS["operator"]()
    try:
        target.run(b"GET /metrics HTTP/secret\r\n\r\n")
    finally:
        target.close()
    assert "secret" not in caplog.text


def test_a_segment_that_no_stream_reaches_is_refused() -> None:
    """A damaged block takes 2^31 bits for one threshold, or ends the worker at the next tick."""
    variant = next(each for each in VARIANTS if each.mechanism == "bounded_max")
    one = Run(built(variant), 4)
    one.transcript(stream_of(4)[:9])
    assert isinstance(one.state, OrderStatisticState)
    one.state.by_key[0].segment = 1 << 31
    one.state.by_key[0].changed = True
    with pytest.raises(StateRefused):
        one.restart()
