"""Worker topics never exceed the ceiling in any period.

Four days of one histogram are exactly what any three days may touch.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.cluster.stages import (
    DAY_MS,
    FIRST_MS,
    HOUR_MS,
    Stages,
    daily,
    day,
    order,
)
from tests.privacy.ceiling.oracle import Epoch, days_of, published, worst
from tests.worker.harness import Bare, Site, until
from workers.agents.ceiling_guard import CeilingGuard
from workers.cli import execute
from workers.kafka.reading import read_partition
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.privacy.ceiling import check_ceiling
from workers.privacy.total import charge_of, epsilon_at
from workers.runtime.errors import CeilingReached, Fenced

pytestmark = pytest.mark.slow

DELTA = 1e-4
PERIOD_MS = 3 * DAY_MS
Histogram = dict[str, object]


def price(epsilon: float, times: int) -> float:
    """Return the epsilon of `times` epochs of the histogram these tests use."""
    config = UnkBaseConfig(
        max_items=1,
        max_items_per_user=1,
        epsilon=epsilon,
        delta=1e-6,
        name="x",
        tick_ms=21_600_000,
        horizon=4,
        keys="public",
    )
    found = epsilon_at(
        [replace(charge_of(config, build(config, "user")).cost, times=times)], DELTA
    )
    assert found is not None
    return found


FOUR_DAYS = (price(0.5, 4) + price(0.5, 5)) / 2


def of_user(name: str = "items", **changes: object) -> Histogram:
    """Return a histogram of users; four of its days fit the ceiling and five do not."""
    return daily(name, **({"max_items_per_user": 1, "epsilon": 0.5} | changes))


class Scene:
    """Worker with a ceiling, all histograms it ever had, and their published epochs."""

    def __init__(
        self,
        cluster: str,
        directory: Path,
        *histograms: Histogram,
        data: Path | None = None,
        **privacy: object,
    ) -> None:
        given = {
            "unit": "user",
            "max_epsilon": FOUR_DAYS,
            "max_delta": DELTA,
            "period": "3d",
        }
        self.site = Site(
            cluster,
            directory,
            histograms,
            privacy=given | privacy,
            partitions=1,
            owners=2,
            events={"user": "user"},
        )
        self.stages = Stages(self.site, data)
        self.all: list[Histogram] = list(histograms)

    def now_has(self, *histograms: Histogram) -> None:
        self.all += histograms
        self.site.document["histogram"] = list(histograms)
        self.site.config = self.site.write(self.site.document)
        self.site.create_topics()

    def publish(self, until_day: float) -> None:
        """Send an event of every key at noon of each unfinished day; publish ticks up to a time."""
        assert self.stages.go(day(until_day), self.events(until_day)) == []

    def events(self, until_day: float) -> list[dict[str, Any]]:
        noons = [n + 0.3 for n in range(1, 1 + int(until_day)) if n + 0.3 < until_day]
        return [order(day(noon), i) for noon in noons for i in range(4)]

    def refuses(self, until_day: float) -> str:
        """Publish until both owner partitions reach the ceiling; return the error text."""
        [one, other] = self.stages.go(day(until_day), self.events(until_day))
        assert one == other
        assert "\n" not in one
        return one

    def published(self, key: str = "k0") -> set[Epoch]:
        unique = {str(one["name"]): one for one in self.all}
        return published(self.site, list(unique.values()), key)

    def days(self) -> dict[str, list[int]]:
        """Return the days every histogram published for the first key, once per generation."""
        return days_of(self.published(), FIRST_MS, DAY_MS)

    def assert_kept(
        self, period_ms: int | None = PERIOD_MS, ceiling: float = FOUR_DAYS
    ) -> None:
        """Check every window with another accountant; the margin is that accountant's own."""
        for n in range(4):
            spent = worst(self.published(f"k{n}"), DELTA, period_ms, once=False)
            assert spent <= ceiling * (1 + 1e-4)


# ---- one after another ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["renamed", "generation", "second"])
def test_what_was_spent_counts_whatever_the_settings_and_the_data_directory_say(
    cluster: str, tmp_path: Path, change: str
) -> None:
    """Two days of the first histogram and two of its successor, from the second day, are four."""
    scene = Scene(cluster, tmp_path, of_user(), data=tmp_path / "data")
    scene.publish(1.5)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    scene.publish(2.5)
    if change != "second":
        shutil.rmtree(tmp_path / "data")
    if change == "generation":
        shutil.copytree(tmp_path / "copy", tmp_path / "data")
    after = {
        "renamed": [of_user("other")],
        "generation": [of_user(generation=2)],
        # About half of rho each.
        "second": [of_user(generation=2, epsilon=0.35), of_user("other", epsilon=0.35)],
    }[change]
    scene.now_has(*after)
    if change == "renamed":
        assert execute(["retire", "-c", str(scene.site.config), "items"]) == 0
    said = scene.refuses(6)
    assert (
        "items generation 1 of worker" in said
        and "(2 epochs)" in said
        and "in any 3d" in said
    )
    assert "epoch 20,458 of histogram" in said and "from 2026-01-04T00:00:00Z" in said
    assert {time for days in scene.days().values() for time in days} == {1, 2, 3}
    scene.assert_kept()
    if change == "renamed":
        # It refuses at the start as well, and resumes as soon as the ceiling allows.
        assert scene.refuses(7) == said
        scene.site.set("privacy", max_epsilon=2 * FOUR_DAYS)
        scene.publish(7)
        assert scene.days()["other"] == [2, 3, 4, 5, 6]


def recreate(
    site: Site, topic: str, records: list[tuple[int, bytes, bytes | None]]
) -> None:
    """Delete a topic and create it again with other records, as restoring a copy does."""
    for future in site.admin.delete_topics([topic]).values():
        future.result(60)

    def made() -> bool:
        try:
            new = NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})
            for future in site.admin.create_topics([new]).values():
                future.result(60)
        except KafkaException as error:  # the old one is not gone yet
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    until(made, f"{topic} is made again")
    for partition, key, value in records:
        site.producer.produce(topic, value, key, partition)
    assert site.producer.flush(60) == 0

    def readable() -> bool:
        read = (read_partition(site.connection, topic, owner) for owner in range(2))
        return sum(len(list(found)) for found in read) == len(records)

    until(readable, f"{topic} has leaders")


def test_a_restored_state_is_charged_up_to_where_it_was_ended(
    cluster: str, tmp_path: Path
) -> None:
    """The copy knows of one day, but two were published. The unknown part is taken as charged."""
    scene = Scene(cluster, tmp_path, of_user())
    scene.publish(1.5)
    state = scene.site.settings.release_state_topic
    copy = [
        (owner, record.key() or b"", record.value())
        for owner in range(2)
        for record in read_partition(scene.site.connection, state, owner)
    ]
    scene.publish(2.5)
    recreate(scene.site, state, [])
    [said, _] = scene.stages.go(day(2.5))
    assert f"items holds snapshots, but {state} has no charge for them" in said
    recreate(scene.site, state, copy)
    scene.now_has(of_user(generation=2))
    assert "(2 epochs)" in scene.refuses(6)
    assert scene.days() == {"items": [1, 2, 2, 3]}
    scene.assert_kept()


def test_a_renamed_worker_pays_for_what_the_old_name_published(
    cluster: str, tmp_path: Path
) -> None:
    """The renamed worker reads the events topic from its beginning and counts every event again."""
    scene = Scene(cluster, tmp_path / "old", of_user())
    scene.publish(3)
    assert scene.days() == {"items": [1, 2]}
    renamed = Scene(cluster, tmp_path / "new", of_user())
    renamed.site.topics = scene.site.topics
    renamed.site.places = scene.site.places
    renamed.site.set("events", topic=scene.site.topic)
    said = renamed.refuses(5)
    assert f"items generation 1 of worker {scene.site.name}" in said
    # with the two of the old name it is four
    assert renamed.days() == {"items": [1, 2]}
    both = scene.published() | renamed.published()
    assert worst(both, DELTA, PERIOD_MS, once=False) <= FOUR_DAYS * (1 + 1e-4)
    renamed.site.set("privacy", uncounted_workers=[scene.site.name])
    renamed.publish(6)
    assert renamed.days() == {"items": [1, 2, 3, 4, 5]}


# ---- times ---------------------------------------------------------------------------------------


def test_a_clock_that_jumps_spends_nothing_twice(cluster: str, tmp_path: Path) -> None:
    """Skipped days are published empty and charged; repeated days are not published again."""
    scene = Scene(cluster, tmp_path, of_user())
    scene.publish(2.5)
    assert scene.stages.go(day(8.5)) == []
    assert scene.stages.go(day(3.5), [order(day(3.2), i) for i in range(4)]) == []
    assert scene.days() == {"items": list(range(1, 9))}
    scene.now_has(of_user("other"))  # it begins where the clock was
    assert execute(["retire", "-c", str(scene.site.config), "items"]) == 0
    assert "items generation 1 of worker" in scene.refuses(10.5)
    assert scene.days() == {"items": list(range(1, 9))}
    scene.assert_kept()


def test_epochs_of_unlike_lengths_are_added_up_where_they_meet(
    cluster: str, tmp_path: Path
) -> None:
    """Epochs of 24 and 25 hours overlap at varying offsets; the limit must be exact."""
    odd = of_user("odd", tick="5h", horizon=5, epsilon=0.25)
    first = of_user(epsilon=0.25)
    scene = Scene(cluster, tmp_path, first, odd, period="epoch", max_epsilon=10.0)
    exactly = check_ceiling(scene.site.settings)
    assert exactly is not None
    scene.site.set("privacy", max_epsilon=exactly)
    scene.publish(4.3)  # in a tick of each of them
    scene.assert_kept(None, exactly)
    scene.now_has(of_user("other", epsilon=0.25), odd)
    assert execute(["retire", "-c", str(scene.site.config), "items"]) == 0
    refused = scene.stages.go(day(9.1), scene.events(9.1))
    scene.assert_kept(None, exactly)
    [said] = set(refused)
    # The refused epoch would have been one too many.
    epoch, name = re.search(r"epoch ([0-9,]+) of histogram '([a-z]+)'", said).groups()  # type: ignore[union-attr]
    width = 25 * HOUR_MS if name == "odd" else DAY_MS
    begin = (int(epoch.replace(",", "")) - 1) * width
    found = scene.published()
    assert len({(one.rho, one.failures) for one in found}) == 1
    following = next(iter(found))._replace(id="next", begin=begin, end=begin + width)
    assert worst({*found, following}, DELTA, None, once=False) > exactly


def test_an_event_pays_for_a_new_generation_once_a_period(
    cluster: str, tmp_path: Path
) -> None:
    """It is in only one of them, but a restored copy cannot tell, so it may be in both."""
    once = daily(epsilon=1.0)
    scene = Scene(
        cluster, tmp_path, once, unit="event", max_epsilon=1.0, period="epoch"
    )
    scene.publish(2.5)
    scene.now_has(once | {"generation": 2})
    said = scene.refuses(2.8)
    assert "would bring one event to epsilon 1.0" in said
    assert scene.days() == {"items": [1, 2]}
    later = {"generation": 2, "start": Bare("2026-01-03T00:00:00Z")}
    scene.now_has(once | later)
    scene.publish(3.5)
    assert scene.days() == {"items": [1, 2, 3]}
    assert worst(scene.published(), DELTA, None, once=True) <= 1


# ---- at once -------------------------------------------------------------------------------------


def test_two_workers_with_other_settings_that_begin_at_once_see_each_other(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has one owner partition and a histogram; both are too much for one user."""
    limit = (price(0.9, 1) + price(0.9, 2)) / 2
    first = of_user(epsilon=0.9)
    scene = Scene(cluster, tmp_path, first, max_epsilon=limit, period="epoch")
    one = scene.stages.factory()
    scene.now_has(of_user("other", epsilon=0.9))
    other = scene.stages.factory()
    here = scene.stages.take_over(0, one)
    there = scene.stages.take_over(1, other)
    scene.stages.contribute(day(2), scene.events(2))
    refused: list[str] = []
    refresh = CeilingGuard.refresh

    def meanwhile(guard: CeilingGuard) -> None:
        # The first has reserved its epoch, and has not looked yet.
        monkeypatch.setattr(CeilingGuard, "refresh", refresh)
        with pytest.raises(CeilingReached) as caught:
            scene.stages.release(there)
        refused.append(str(caught.value))
        refresh(guard)

    monkeypatch.setattr(CeilingGuard, "refresh", meanwhile)
    with pytest.raises(CeilingReached) as caught:
        scene.stages.release(here)
    assert "items generation 1" in refused[0] and "other generation 1" in str(
        caught.value
    )
    assert not scene.published() and not scene.published("k1")


def test_of_two_workers_of_one_name_the_older_spends_nothing(
    cluster: str, tmp_path: Path
) -> None:
    """An uncommitted reservation does not count; a committed one is charged to both."""
    scene = Scene(cluster, tmp_path, of_user())
    older = [scene.stages.take_over(owner) for owner in range(2)]
    scene.stages.contribute(day(2.5), scene.events(2.5))
    for shard in (scene.stages.take_over(owner) for owner in range(2)):
        scene.stages.release(shard)
    for shard in older:
        with pytest.raises(Fenced):
            scene.stages.release(shard)
    assert scene.days() == {"items": [1, 2]}
    scene.publish(5)
    assert scene.days() == {"items": [1, 2, 3, 4]}
