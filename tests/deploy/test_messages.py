"""Every message and exit code of the code has a row in docs/operations.md, and every row something in the code."""

import ast
import re
from functools import cache

import pytest

from tests.deploy import messages as messages_of
from tests.deploy.messages import GUIDE, INTERNAL, Message, messages
from workers.commands.explaining import HOLE, covers, patterns, rows

pytestmark = pytest.mark.slow


# Every module, parsed once, when a test needs it.
modules = cache(messages_of.sources)


@cache
def found_messages() -> list[Message]:
    return messages(modules())


TEXT = GUIDE.read_text()
SYMPTOMS = [
    (pattern, row) for row in rows("## Messages", TEXT) for pattern in patterns(row)
]


def uncovered(found: list[Message]) -> list[str]:
    """Messages that say something of their own and that no row explains, with what to do about it."""
    return [
        f"{message.place}: docs/operations.md has no row for: {message.text}\n    Add some of its fixed words, between backticks "
        f"and with {HOLE} for what varies, to the first cell of a row of its table under '## Messages', or add a row. "
        "A ValueError that only a mistake in the program can raise: name its module in INTERNAL of tests/deploy/messages.py."
        for message in found
        if len(message.words) > 1
        and not any(covers(pattern, message.text) for pattern, _ in SYMPTOMS)
    ]


def test_every_message_has_a_row() -> None:
    missing = uncovered(found_messages())
    assert not missing, "\n".join(["", *missing])


def test_a_message_without_a_row_is_found_and_named() -> None:
    text = 'def f(x):\n    raise SettingsError(f"the {x} is wrong side up: turn it round")\n'
    [problem] = uncovered(
        messages(modules() | {"workers/new.py": ast.parse(text)})[-1:]
    )
    assert (
        "workers/new.py:2: " in problem
        and "the … is wrong side up: turn it round" in problem
    )
    failing = 'handover.fail(2, f"{x} fell over again")'
    for said in ('logger.warning("%s fell over again", x)', failing):
        [message] = messages({"workers/new.py": ast.parse(said)})
        assert message.text == f"{HOLE} fell over again"


def test_the_messages_are_all_found() -> None:
    found = {message.text for message in found_messages()}
    for one in (
        "the key file holds another key than the one this state was made with: restore the old key file",  # raised
        "…: reading all of it again",  # logged
        "internal error: … at an unknown place; --debug shows more",  # said at the end of a command
        "… has cleanup.policy = … and needs compact: state would be lost",  # gathered
        "Kafka does not allow it: …. See deploy/acls.md for the rights that are needed",  # returned
        "…name = …: another histogram has this name",  # yielded
        "…: published, but it does not follow from the contributions",  # an exception of another base
    ):
        assert one in found
    assert set(modules()) >= INTERNAL, "a module that is left out is not there any more"


def test_a_row_explains_something_that_there_is() -> None:
    """One test for all 470: as a test for each they took longer to collect and report than to run."""
    texts = [message.text for message in found_messages()]
    too_little = []
    of_nothing = []
    for pattern, _ in SYMPTOMS:
        fixed = re.findall(r"[^\W\d_]+", pattern)
        if len(fixed) < 2 or sum(map(len, fixed)) < 7:
            too_little.append(pattern)
        if not any(covers(pattern, text) for text in texts):
            of_nothing.append(pattern)
    assert SYMPTOMS and (too_little, of_nothing) == ([], [])


def test_every_row_says_why_and_what_to_do() -> None:
    for row in rows("## Messages", TEXT):
        assert len(row) == 3 and all(row), row


def test_an_operator_reads_the_guide_in_ten_minutes() -> None:
    """At 220 words a minute; the tables behind it are looked up."""
    procedures, _, _ = TEXT.partition("\n## Messages\n")
    assert len(procedures.split()) <= 2_250


def test_every_exit_code_is_listed_and_no_other() -> None:
    """Supervisors decide by them. 1 is returned by `audit` and `topics` without a name of its own."""
    listed = {int(row[0]) for row in rows("## Exit codes", TEXT)}
    assert listed == messages_of.exit_codes(modules()) | {1}


def test_every_reason_of_a_reject_is_listed_and_no_other() -> None:
    listed = {pattern for row in rows("## Rejects", TEXT) for pattern in patterns(row)}
    assert listed == messages_of.reject_reasons(modules())
