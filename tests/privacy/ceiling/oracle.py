"""Cost of snapshots per user or event and period: every window, with dp_accounting."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.worker.harness import Site
from workers.mechanisms.config.durations import parse_duration


class Epoch(NamedTuple):
    topic: str
    id: str
    begin: int
    end: int
    rho: float
    delta: float
    failures: float


def epsilon_of(rho: float, delta: float) -> float:
    """Return an independent epsilon of a zCDP cost: slightly above the best integer order."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    best = 1 + math.sqrt(math.log(1 / delta) / rho)
    orders = sorted({max(2, round(best * factor / 200)) for factor in range(20, 400)})
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_event.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    return float(accountant.get_epsilon(delta))


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return an independent epsilon of a Gaussian cost, by bisection."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(1 / math.sqrt(2 * rho))
    low = 0.0
    high = 1000.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if loss.get_delta_for_epsilon(middle) > delta
            else (low, middle)
        )
    return high


def published(
    site: Site, histograms: Sequence[dict[str, object]], key: str
) -> set[Epoch]:
    """Return the epochs with snapshots of one stream key; `histograms` lists all that existed."""
    found: set[Epoch] = set()
    for histogram in histograms:
        topic = f"{site.name}.{histogram['name']}"
        width = parse_duration(histogram["tick"]) * int(str(histogram["horizon"]))
        for message in site.read(topic):
            body = json.loads(message.value() or b"{}")
            if body["key"] != key:
                continue
            begin = body["start"] - (body["tick"] - 1) * (body["end"] - body["start"])
            promise = body["guarantee"]
            # Half of an unk_base's delta is for discovery.
            price = promise["rho"], promise["delta"], promise["delta"] * 0.5
            found.add(Epoch(topic, body["id"], begin, begin + width, *price))
    return found


def worst(
    epochs: Iterable[Epoch], delta: float, period_ms: int | None, once: bool
) -> float:
    """Return the largest epsilon of any window; `once`: one epoch per generation (an event)."""
    epochs = list(epochs)
    if period_ms is None:
        windows = [(one.begin, one.end) for one in epochs]
    else:
        ends = {edge for one in epochs for edge in (one.begin, one.end)}
        edges = {edge + step for edge in ends for step in (-1, 0, 1)}
        windows = [
            (at - back, at - back + period_ms)
            for at in edges
            for back in (0, period_ms)
        ]
    most = 0.0
    for begin, end in windows:
        inside = [one for one in epochs if one.begin < end and begin < one.end]
        if once:
            inside = list({(one.topic, one.rho): one for one in inside}.values())
        left = delta - math.fsum(one.failures for one in inside)
        if not inside:
            continue
        rho = math.fsum(one.rho for one in inside)
        most = max(most, gaussian_epsilon(rho, left) if left > 0 else math.inf)
    return most


def days_of(
    epochs: Iterable[Epoch], first_ms: int, day_ms: int
) -> dict[str, list[int]]:
    """Return every topic's days, once per generation that published them."""
    found: dict[str, Counter[int]] = {}
    for one in epochs:
        days = found.setdefault(one.topic.rpartition(".")[2], Counter())
        days[1 + (one.begin - first_ms) // day_ms] += 1
    return {topic: sorted(days.elements()) for topic, days in found.items()}
