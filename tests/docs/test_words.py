"""What documents and pages say that an observer can learn is what the odds allow."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.texts import DOCUMENTS, plain, sentences
from workers.mechanisms.registry import build
from workers.privacy.phrasing import (
    WORDS,
    can_do,
    guesses_right,
    is_void,
    up_to,
    verdict,
)
from workers.privacy.total import charge_of, spans_of
from workers.settings.settings import load

README = ROOT / "README.md"
GUARANTEE = ROOT / "docs" / "guarantee.md"
ORDERS = ROOT / "examples" / "orders" / "orders.toml"
FIRST_SCREEN = 25

#: What no epsilon that is worth having allows to say. "Promised" is about the promise itself.
TOO_MUCH = re.compile(
    r"almost nothing|next to nothing(?!,? (?:or nothing, )?(?:is|may be) promised)|only a little|very little"
    r"|cannot become sure|can hardly|nobody can (?:tell|learn|know|be sure)|no one can (?:tell|learn|know)"
    r"|cannot (?:tell|learn|know|find out|be sure) whether (?:any|an event|one|you|some)"
    r"|impossible to (?:tell|learn|know) whether"
    r"|learns? nothing|reveals? nothing|completely (?:private|hidden)|perfectly (?:private|hidden)|(?:is|are|stays?) anonymous",
    re.IGNORECASE,
)
OBSERVER = re.compile(
    r"\b(observers?|attackers?|adversary|(who|some|any)(ever|one)( who)? sees|sees all)\b",
    re.IGNORECASE,
)
LEARNS = re.compile(
    r"\b(learn|learns|learned|guess|guesses|tell|sure|find out)\b", re.IGNORECASE
)
PHRASES = [words.rstrip(",").removeprefix("can ") for _, words in WORDS]
#: Sentences about attacks that were run: they state what was measured, not what an observer can do.
MEASURED = {"docs/privacy-audit.md"}
SOURCES = [
    *sorted((ROOT / "workers").rglob("*.py")),
    *sorted((ROOT / "workers" / "dashboard" / "page").glob("*.js")),
    *sorted((ROOT / "workers" / "dashboard" / "page").glob("*.html")),
    *sorted((ROOT / "workers" / "replay" / "report" / "templates").iterdir()),
    *sorted((ROOT / "examples").rglob("*.toml")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
#: Where such words are about something else than what is published.
ABOUT_OTHERS = {
    "docs/backtesting.md": ["loses almost nothing"],
    "docs/mechanisms.md": ["a tick with few events shows next to nothing"],
}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_text_claims_more_than_the_odds_allow() -> None:
    """The README once said "learns almost nothing" at epsilon 1, where 73 guesses of 100 may be right."""
    found = {}
    for path in (*DOCUMENTS, *SOURCES):
        text = plain(path)
        for other in ABOUT_OTHERS.get(named(path), ()):
            assert other in text
            text = text.replace(other, "")
        if too_much := TOO_MUCH.findall(text):
            found[named(path)] = too_much
    assert found == {}


def claims(path: Path) -> Iterator[str]:
    """Yield the sentences about what an observer learns."""
    for sentence in sentences(path):
        if OBSERVER.search(sentence) and LEARNS.search(sentence):
            yield sentence


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if named(path) not in MEASURED], ids=named
)
def test_every_sentence_about_what_an_observer_learns_has_words_of_the_table(
    path: Path,
) -> None:
    """And where it names an epsilon, the words of that epsilon."""
    for sentence in claims(path):
        found = [phrase for phrase in PHRASES if phrase in sentence]
        assert found or "times in 100" in sentence, sentence
        for epsilon in map(float, re.findall(r"epsilon = ([\d.]+\d|\d)", sentence)):
            assert can_do(epsilon).rstrip(",") in sentence, sentence
            assert (
                f"right at most {guesses_right(epsilon, 1e-9)} times in 100" in sentence
            ), sentence


def test_the_rules_find_what_they_are_to_forbid() -> None:
    """A test that reads no sentence finds no fault."""
    assert any(claims(README)) and any(claims(GUARANTEE))
    for sentence in (
        "An observer of all snapshots learns almost nothing about any single event.",
        "Whoever sees all snapshots may guess better, but cannot become sure.",
        "Nobody can tell whether you were there.",
        "Someone who sees everything learns only a little.",
    ):
        assert TOO_MUCH.search(sentence)


def test_the_first_screen_of_the_readme_says_what_is_protected_and_what_is_not() -> (
    None
):
    """A reader who stops there must know that a person is not protected, and at what total."""
    screen = " ".join("\n".join(README.read_text().splitlines()[:FIRST_SCREEN]).split())
    settings = load(ORDERS)
    [config] = settings.histograms
    assert settings.privacy.unit == "event" and config.epsilon == 1.0
    learned = verdict(config.epsilon, config.delta, "any one event was counted")
    assert f"someone who sees them all {learned.removesuffix('.')} (" in screen
    assert "By default one event is protected, not a person." in screen
    assert '[`unit = "user"`](docs/guarantee.md#users)' in screen
    year = spans_of([charge_of(config, build(config))])[-1]
    daily = year.losses[0]
    assert (
        daily.events == 1
        and daily.epsilon is not None
        and is_void(daily.epsilon, daily.delta)
    )
    assert (
        f"{year.epochs} daily epochs a year, which add up to epsilon {up_to(daily.epsilon)}: void"
        in screen
    )
