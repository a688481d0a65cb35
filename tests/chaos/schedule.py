"""What happens in a run: drawn from a seed, so that the same seed repeats it.

A run is a sequence of rounds; the segments of a round run side by side on one cluster, each with its
own worker name. A schedule fixes every decision of the test. Which thread of a worker reaches a step
first, and how the group divides the partitions, is up to the processes.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import msgspec

from tests.chaos.steps import BROKER, START_STEPS, STEPS

KINDS = ("kill", "stop", "term")
#: Step of an act at a random moment, which is the driver's.
RANDOM = "at random"
CLOCKS_MS = {
    "+1h": 3_600_000,
    "-1h": -3_600_000,
    "+1y": 31_536_000_000,
    "-1y": -31_536_000_000,
}
COPIES = ("truncated", "rolled back", "swapped", "deleted")
DISKS = ("full", "failing to write", "failing to read")
#: Faults of the only broker, and of three.
OUTAGES = ("killed", "frozen")
PARTIAL = (
    "restarted in turn",
    "killed",
    "frozen",
    "leaders moved",
    "two killed",
    "cut off",
)
#: Acts of a segment; the last round of this many has an outage, and the last segment a wrong clock.
ACTS = 12
OUTAGE_EVERY = 6
CLOCK_EVERY = 9


class Act(msgspec.Struct, omit_defaults=True):
    """One end of a worker: after `after_s` at work, or the `nth` time that it reaches a step; of a
    partition in whose transactional id `of` is.
    """

    kind: str
    step: str = RANDOM
    nth: int = 1
    of: str = ""
    after_s: float = 0.0


class Start(msgspec.Struct, omit_defaults=True):
    """One worker process: what was done to its `data_dir`, its disk and clock, and how it ends."""

    acts: list[Act]
    wait_s: float = 0.0
    copy: str = ""
    disk: str = ""
    clock: str = ""
    #: Every worker ends before; this one and later ones have a raised generation.
    raises: bool = False
    #: The first events topic gets two more partitions before.
    grows: bool = False


class Segment(msgspec.Struct, omit_defaults=True, kw_only=True):
    number: int
    seed: int
    starts: list[Start]
    unit: str = "event"
    rekey: bool = False
    topics: tuple[int, ...] = (4,)
    ceiling: bool = False
    #: Ticks of an epoch; 0: none ends.
    horizon: int = 0
    session_s: float = 10.0
    #: A step that is not reached for so long is given up: the worker is killed at that moment.
    patience_s: float = 25.0
    backlog: int = 2_000
    #: Events a second.
    rate: int = 100
    #: Lead of event times over the clock: no event is late for an outage.
    ahead_ms: int = 8_000

    @property
    def acts(self) -> int:
        return sum(len(start.acts) for start in self.starts)

    @property
    def clock(self) -> str:
        return next((start.clock for start in self.starts if start.clock), "")

    @property
    def raises(self) -> bool:
        return any(start.raises for start in self.starts)

    @property
    def grows(self) -> bool:
        return any(start.grows for start in self.starts)


class Trouble(msgspec.Struct):
    """A fault of brokers, `at_s` after the round began."""

    kind: str
    broker: int
    at_s: float
    for_s: float


class Round(msgspec.Struct, omit_defaults=True):
    """`away_s`: how long the only broker is away each time that a worker kills it, in turn."""

    segments: list[Segment]
    trouble: list[Trouble] = []
    away_s: list[float] = []


class Deck:
    """Deals every pair of a step and a kind before any comes again."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._cards: dict[str, list[tuple[str, str]]] = {}

    def deal(self, features: Sequence[str]) -> Act:
        """Return an act at a step that a segment with one of these `features` reaches."""
        hands = [self._hand(feature) for feature in features]
        [hand] = self._rng.choices(hands, [len(hand) for hand in hands])
        step, kind = hand.pop()
        return Act(
            kind,
            step,
            nth=1 if STEPS[step].seldom else self._rng.choice((1, 1, 2, 3, 5, 9)),
        )

    def at_random(self) -> Act:
        [kind] = self._rng.choices(KINDS, (4, 1, 1))
        return Act(kind, after_s=round(self._rng.uniform(0.3, 9.0), 2))

    def _hand(self, feature: str) -> list[tuple[str, str]]:
        if not self._cards.get(feature):
            steps = [name for name, step in STEPS.items() if step.feature == feature]
            cards = [
                (step, kind) for step in steps for kind in ("kill", "kill", *KINDS)
            ]
            self._rng.shuffle(cards)
            self._cards[feature] = cards
        return self._cards[feature]


def rounds_of(seed: int, acts: int, brokers: int, together: int) -> Iterator[Round]:
    """Yield rounds of up to `together` segments until they have `acts` acts."""
    rng = random.Random(seed)
    number = 0
    deck = Deck(rng)
    for at in count():
        trouble = _trouble(rng, brokers, at)
        segments = list[Segment]()
        while len(segments) < together and acts > 0:
            segments.append(_segment(rng, deck, number, min(ACTS, acts), trouble))
            number = number + 1
            acts = acts - segments[-1].acts
        if not segments:
            return
        yield Round(segments, trouble)


#: Starts of a segment; the broker is killed once in each.
_STARTS = 9


def starts_of(seed: int, kills: int, together: int) -> Iterator[Round]:
    """Yield rounds in which workers kill the broker at every step of their start, `kills` times.

    Each worker is ended a while later, while the broker is away or after that.
    """
    rng = random.Random(seed)
    number = 0
    steps: list[str] = []
    while kills > 0:
        segments: list[Segment] = []
        before = kills
        while len(segments) < together and kills > 0:
            segment = Segment(number=number, seed=rng.randrange(10**9), starts=[])
            segment.session_s = 4.0
            segment.patience_s = 60.0
            # No event that waits in its producer for the broker is late.
            segment.ahead_ms = 90_000
            segment.backlog = 1_000
            segment.rate = 50
            segment.unit = rng.choice(("event", "user"))
            segment.rekey = segment.unit == "user" and rng.random() < 0.5
            segment.ceiling = rng.random() < 0.3
            for _ in range(min(_STARTS, kills)):
                steps = steps or rng.sample(START_STEPS, len(START_STEPS))
                end = Act(
                    rng.choice(("kill", "term")),
                    after_s=round(rng.uniform(0.5, 30.0), 1),
                )
                killed = Act(BROKER, steps.pop())
                segment.starts.append(
                    Start([killed, end], wait_s=round(rng.uniform(0, 1.5), 2))
                )
                kills -= 1
            segments.append(segment)
            number += 1
        # Beyond 15 s a worker gives everything up.
        away_s = [
            round(rng.choice((0.0, rng.uniform(0, 22))), 1)
            for _ in range(before - kills)
        ]
        yield Round(segments, away_s=away_s)


def _trouble(rng: random.Random, brokers: int, at: int) -> list[Trouble]:
    if brokers > 1:
        return [
            Trouble(
                kind,
                rng.randrange(brokers),
                10.0 + 35.0 * i,
                round(rng.uniform(8, 20), 1),
            )
            for i, kind in enumerate(rng.sample(PARTIAL, 2))
        ]
    if at % OUTAGE_EVERY < OUTAGE_EVERY - 1:
        return []
    return [Trouble(rng.choice(OUTAGES), 0, 12.0, round(rng.uniform(18, 24), 1))]


def _segment(
    rng: random.Random, deck: Deck, number: int, acts: int, trouble: Sequence[Trouble]
) -> Segment:
    made = Segment(number=number, seed=rng.randrange(10**9), starts=[])
    made.session_s = rng.choice((10.0, 4.0, 4.0))
    made.ahead_ms = 45_000 if trouble else made.ahead_ms
    if not trouble and number % CLOCK_EVERY == CLOCK_EVERY - 1:
        made.starts = list(_starts(rng, deck, acts, [""], []))
        clock = rng.choice(list(CLOCKS_MS))
        for start in made.starts[1::3]:
            start.clock = clock
        return made
    made.unit = rng.choice(("event", "user"))
    made.rekey = made.unit == "user" and rng.random() < 0.6
    if (made.rekey or made.unit == "event") and rng.random() < 0.5:
        made.topics = (1, 3)
    made.ceiling = rng.random() < 0.4
    made.horizon = rng.choice((0, 12, 12))
    there = {
        "": True,
        "user": made.unit == "user",
        "rekey": made.rekey,
        "ceiling": made.ceiling and made.horizon > 0,
        "epochs": made.horizon > 0,
    }
    features = [name for name, has in there.items() if has]
    outage = any(one.kind in OUTAGES for one in trouble) and len(trouble) == 1
    made.patience_s = 60.0 if outage else made.patience_s
    made.starts = list(_starts(rng, deck, acts, features, ["outage"] if outage else []))
    middle = len(made.starts) // 2
    if trouble or middle < 2:
        return made
    if rng.random() < 0.4:
        made.starts[middle].raises = True
        feature = "raised"
    elif made.rekey or made.unit == "event":
        # The first of them may be the one that notices.
        made.starts[middle + 1].grows = True
        feature = "growth"
    else:  # users whom record keys place: python -m tests.worker.growing --users
        return made
    for start in made.starts[middle : middle + 2]:
        start.acts[0] = act = deck.deal([feature])
        if act.kind == "stop" and len(start.acts) == 1:
            act.kind = "kill"  # or the next start would have no place
    return made


def _starts(
    rng: random.Random,
    deck: Deck,
    acts: int,
    features: Sequence[str],
    first: Sequence[str],
) -> Iterator[Start]:
    """Yield starts with `acts` acts in all; the first two workers' first acts are of `first`, if any."""
    for at in count():
        if acts <= 0:
            return
        start = Start([], wait_s=round(rng.uniform(0, 1.5), 2))
        while acts > 0 and (not start.acts or start.acts[-1].kind == "stop"):
            if first and at < 2 and not start.acts:
                act = deck.deal(first)
            else:
                act = deck.at_random() if rng.random() < 0.25 else deck.deal(features)
            start.acts.append(act)
            acts -= 1
        start.copy = rng.choice(COPIES) if at > 1 and rng.random() < 0.2 else ""
        start.disk = rng.choice(DISKS) if rng.random() < 0.1 else ""
        yield start


def write(rounds: Iterable[Round]) -> Iterator[str]:
    return (msgspec.json.encode(each).decode() for each in rounds)


def read(path: Path) -> Iterator[Round]:
    """Yield the rounds among the lines of a schedule or of a run's output."""
    for line in path.read_bytes().splitlines():
        if line.startswith(b'{"segments":'):
            yield msgspec.json.decode(line, type=Round)
