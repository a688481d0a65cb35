"""`quietcount demo`: real flights, a Kafka, the real worker, private counts beside exact ones.

    flights     the data
    generator   sends it
    exact       exact counts of what was sent, which only a demo may know
    child       the worker's settings and process
    boards      published snapshots beside the exact counts
    promise     the guarantee, in words
    view        how that looks on a terminal
    truth       the exact counts for the page, which is otherwise anybody's dashboard
    stop        when to end
    session     all of it together

Nothing here is part of a worker; what a worker publishes is read as by anybody downstream.
"""

from __future__ import annotations

from pathlib import Path

from workers.commands.demo.session import Stop


def run(
    seconds: int | None,
    rate: int,
    bootstrap: str | None,
    picture: Path | None = None,
    port: int | None = None,
) -> int:
    """Run the demo until Ctrl-C or for `seconds`; whatever it started is gone afterwards.

    Args:
        seconds: how long; None: until Ctrl-C.
        rate: events a second.
        bootstrap: a Kafka cluster; None: an embedded one.
        picture: where to write the last view as SVG.
        port: of the page; None: the dashboard's own, or any free one where that is taken.

    Returns:
        0, or the exit code for a worker that failed.

    Raises:
        SettingsError: the flights are not installed, or no broker answers, or `port` is taken.
    """
    with Stop(seconds) as stop:  # first of all: from here on a Ctrl-C ends it in order
        from workers.commands.demo.session import Session

        return Session(rate, bootstrap, picture, port).run(stop)
