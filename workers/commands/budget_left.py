"""What `quietcount budget` says of a ceiling."""

from __future__ import annotations

from typing import Protocol

from workers.ceiling.guard import moment
from workers.spending.model import Left


class Say(Protocol):
    """Prints a line."""

    def __call__(self, text: str, indent: int = 0, style: str = "") -> None: ...


def show_ceiling(left: Left, unit: str, say: Say) -> None:
    """Print a ceiling, and what is left of it."""
    period = "an epoch" if left.period == "epoch" else f"any {left.period}"
    say(f"ceiling: epsilon {left.max_epsilon!r} at delta {left.max_delta!r} for one {unit}, in {period}", style="bold")
    if not left.parts:
        say("nothing is charged yet, so all of it is left", 2)
    else:
        when = "" if left.begins is None or left.ends is None else f", {moment(left.begins)} to {moment(left.ends)},"
        held = "holds no promise at that delta" if left.epsilon is None else f"holds epsilon {left.epsilon:.9g}"
        say(f"the fullest of the newest periods{when} {held}", 2)
        named = (
            f"{part.histogram} generation {part.generation}"
            + ("" if part.worker is None else f" of worker {part.worker}")
            + (f" ({part.epochs:,} epochs)" if part.epochs > 1 else "")
            for part in left.parts
        )
        say(f"it holds: {', '.join(named)}", 2)
        say(f"left in it: rho {left.rho_left:.6g}", 2)
    for one in left.next:
        begins = "" if one.begins is None else f", from {moment(one.begins)}"
        epsilon = "no promise" if one.epsilon is None else f"epsilon {one.epsilon:.9g}"
        verdict = "fits" if one.fits else "does not fit: the worker ends before it"
        say(f"next of {one.histogram}: epoch {one.epoch:,}{begins}, which makes {epsilon}: {verdict}", 2)
    if left.other_workers:
        say(f"counted with it, since they count the same events: {', '.join(left.other_workers)}", 2)
