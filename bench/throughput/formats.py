"""One worker on the same events in JSON, Avro and Protobuf, with one histogram and with five that look at different things.

    one    products of each shop
    five   these; countries; products of one kind of event only; prices in buckets; kinds by country, where the price is high

Read and decoded once, five should go at 70 % or more of the speed of one: by the clock in the steady part, and beside it by
the processor's time, which depends less on what else the machine does. One and five take turns on the same events, and a row
has the medians of its runs, for a machine that others share is half as fast again from one minute to the next. Every run is
checked: its contributions must add up to what the histograms were to see. With a real Schema Registry.
"""

import io
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median

import numpy as np
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from bench.throughput import worker
from bench.throughput.encoded import (
    AVRO_SCHEMA,
    FORMS,
    PRICES,
    PROTOBUF_SCHEMA,
    Encoder,
    kinds,
    prices,
)
from bench.throughput.events import ITEMS_AN_EVENT, Shape
from bench.throughput.producing import TICK_S, blocks, fill
from tests.registry_server import RegistryServer, registry_server
from tests.worker.harness import Site, known, unk
from workers.arrays.types import Longs

PARTITIONS = 2
#: Of each row at least.
RUNS = 3
#: Of five histograms beside one, and of Avro and Protobuf with one, events a second.
SHARE = 0.7
RATES = {"avro": 200_000, "protobuf": 300_000}
_HIGH = PRICES // 2
_KIND = "kind-1"

Histogram = dict[str, object]


def _seen(items: Longs) -> tuple[int, ...]:
    """Return what each of the five histograms counts of these events."""
    of_kind = int((kinds(items) == int(_KIND[-1])).sum())
    high = int((prices(items) >= _HIGH).sum())
    return (
        ITEMS_AN_EVENT * len(items),
        len(items),
        ITEMS_AN_EVENT * of_kind,
        len(items),
        high,
    )


def histograms() -> list[Histogram]:
    """Return the five; the first is the one."""
    common: Histogram = {
        "tick": f"{TICK_S}s",
        "epsilon": 1.0,
        "delta": 1e-9,
        "max_items": 1,
    }
    edges = list(range(0, PRICES + 1, PRICES // 10))
    numbers = {
        name: value
        for name, value in known("prices", **common).items()
        if name != "domain"
    }
    return [
        unk("products", **common | {"max_items": ITEMS_AN_EVENT}),
        unk("countries", **common, items="country"),
        unk(
            "of-a-kind",
            **common | {"max_items": ITEMS_AN_EVENT},
            where=[{"field": "kind", "in": [_KIND]}],
        ),
        numbers | {"items": "price", "buckets": edges},
        unk(
            "kinds",
            **common,
            key="country",
            items="kind",
            where=[{"field": "price", "min": _HIGH}],
        ),
    ]


def table(bootstrap: str, directory: Path, given: Namespace) -> None:
    """Print the table.

    Raises:
        RuntimeError: an event was lost or counted twice.
    """
    directory.mkdir(parents=True, exist_ok=True)
    print(
        f"\n{given.events:,} events in three forms, {PARTITIONS} partitions, {given.owners} owner partitions",
        flush=True,
    )
    print(
        f"{'':24} {'whole/s':>11} {'steady/s':>11} {'CPU us':>7} {'peak MB':>8} {'of one':>7} {'by CPU':>7}",
        flush=True,
    )
    with registry_server(directory) as registry:
        for form in FORMS:
            runs = _measure(bootstrap, directory / form, registry, form, given)
            cpu_us = {
                number: median(run.cpu_us for run in of_number)
                for number, of_number in runs.items()
            }
            steady = {
                number: median(run.steady for run in of_number)
                for number, of_number in runs.items()
            }
            for number, of_number in runs.items():
                share = steady[number] / steady[1]
                row = f"{form}, {number} histogram{'s' * (number > 1)}"
                least = SHARE if number > 1 else RATES.get(form, 0) / steady[1]
                whole = median(run.whole for run in of_number)
                peak = max(run.peak for run in of_number)
                print(
                    f"{row:24} {whole:11,.0f} {steady[number]:11,.0f} {cpu_us[number]:7.2f} "
                    f"{peak / 1e6:8,.0f} {share:7.2f}"
                    f" {cpu_us[1] / cpu_us[number]:7.2f}{'' if share >= least else '   below its target'}",
                    flush=True,
                )


def _measure(
    bootstrap: str,
    directory: Path,
    registry: RegistryServer,
    form: str,
    given: Namespace,
) -> dict[int, list[worker.Run]]:
    """Return the runs with one histogram and with five, in turns."""
    shape = Shape(domain=given.domain[0])
    events = _site(bootstrap, directory / "events", registry, form, 1, given)
    schema_id = 0
    if form != "json":
        client = SchemaRegistryClient({"url": registry.url})
        text = AVRO_SCHEMA if form == "avro" else PROTOBUF_SCHEMA
        schema_id = client.register_schema(
            f"{events.topic}-value", Schema(text, form.upper())
        )
    events.create_events()
    made = Encoder(form, schema_id)
    last_ms = fill(
        bootstrap,
        events.topic,
        PARTITIONS,
        given.events,
        shape,
        given.events_a_tick,
        made,
    )
    right = expected(shape, given.events)
    runs: dict[int, list[worker.Run]] = {1: [], 5: []}
    for turn in range(max(RUNS, given.runs)):
        for number, of_number in runs.items():
            place = _site(
                bootstrap,
                directory / f"{number}-{turn}",
                registry,
                form,
                number,
                given,
                events.topic,
            )
            with redirect_stdout(io.StringIO()):
                place.create_topics()
            of_number.append(worker.run(place, given.events, last_ms))
            found = worker.contributed(place)
            worker.forget(place)
            if found != sum(right[:number]):
                raise RuntimeError(
                    f"{form}, {number} histograms: the contributions add up to {found:,}, not to "
                    f"{sum(right[:number]):,}"
                )
    worker.forget(events)
    return runs


def _site(
    bootstrap: str,
    directory: Path,
    registry: RegistryServer,
    form: str,
    number: int,
    given: Namespace,
    topic: str = "",
) -> Site:
    """Make the site of a worker with this many histograms that reads a topic, its own by default."""
    place = Site(
        bootstrap,
        directory,
        histograms()[:number],
        partitions=PARTITIONS,
        owners=given.owners,
        create=False,
        worker={"commit_interval": "5s", "log_format": "json"},
        events={"format": form} | ({"topic": topic} if topic else {}),
    )
    if form != "json":
        place.document["schema_registry"] = {"url": registry.url}
        place.config = place.write(place.document)
    return place


def expected(shape: Shape, number: int) -> tuple[int, ...]:
    """Return what the contributions of each histogram must add up to."""
    seen = [_seen(drawn.items) for drawn, _ in blocks(shape, PARTITIONS, number, 0, 1)]
    return tuple(int(total) for total in np.sum(seen, axis=0))
