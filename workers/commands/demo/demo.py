"""`quietcount demo`: real flights, a Kafka, the real worker, private counts beside exact ones.

    generator   reads the flights and sends them
    exact       exact counts of the sent events, which only a demo may know, for boards and page
    session     cluster, worker process, promise, and when to end
    view        draws on a terminal

Nothing here is part of a worker; the demo reads published snapshots like any downstream consumer.
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
    """Run the demo until Ctrl-C or for `seconds`; remove everything it started.

    `rate` is events per second. `bootstrap` None is an embedded Kafka, `port` None the dashboard's
    own, or any free one if that is taken. `picture` receives the last view as SVG.
    Return 0, or the exit code for a worker that failed.
    """
    with Stop(seconds) as stop:  # first: from here on, Ctrl-C ends the demo cleanly
        from workers.commands.demo.session import Session

        return Session(rate, bootstrap, picture, port).run(stop)
