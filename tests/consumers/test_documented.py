"""docs/consumers.md, followed literally: its commands on a real worker's topic, and its query on what they kept."""

import re
import shlex
from pathlib import Path

import duckdb
import pytest

from tests.consumers.scene import EPOCH_TICKS, EXAMPLES, Program, Scene, run

pytestmark = pytest.mark.waits

GUIDE = EXAMPLES.parents[1] / "docs" / "consumers.md"


def commands(scene: Scene) -> dict[str, list[str]]:
    """Words of each command of the guide, by the script that it runs, on the scene's topic."""
    text = GUIDE.read_text()
    found = {}
    for line in re.findall(r"^    (.*examples/consumers/.*)$", text, re.MULTILINE):
        # The agent needs leaders that change; the others show most where a snapshot has pages, and is never empty.
        topic = scene.topic("items" if "agent" in line else "large")
        words = shlex.split(line.replace("orders.products", topic))
        place = next(i for i, word in enumerate(words) if word.startswith("examples/"))
        found[Path(words[place]).name] = words[:place] + words[place + 1 :]
    return found


def test_commands_and_query_of_the_guide_do_what_it_says(
    scene: Scene, tmp_path: Path
) -> None:
    by_script = commands(scene)
    bootstrap = scene.site.connection.bootstrap
    assert set(by_script) == {"board.py", "agent.py", "to_duckdb.py"}

    [_, *options] = by_script["board.py"]
    board = run("board.py", *options, "--bootstrap", bootstrap)
    assert board.returncode == 0, board.stderr
    last = max(scene.whole("large").values(), key=lambda snapshot: snapshot["end"])
    assert last["pages"] > 1
    assert f"{last['items'][0][1]:,} ±" in board.stdout

    [variable, _, *options] = by_script["agent.py"]
    name, _, topic = variable.partition("=")
    environment = {name: topic, "BOOTSTRAP": bootstrap, "GROUP": f"{topic}-guide"}
    with Program(tmp_path, "agent.py", *options, **environment) as agent:
        agent.wait_for("tea leads")
        agent.stop()

    [_, *options] = by_script["to_duckdb.py"]
    done = run("to_duckdb.py", *options, "--bootstrap", bootstrap, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "board").rglob("*.parquet"))
    query, changes = re.findall(
        r"^```sql\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    with duckdb.connect(str(tmp_path / "board.duckdb"), read_only=True) as database:
        rows = database.execute(query).fetchall()
    assert [[label, count] for _, label, count, *_ in rows] == last["items"]

    items = scene.whole("items")
    options[options.index(scene.topic("large"))] = scene.topic("items")
    done = run("to_duckdb.py", *options, "--bootstrap", bootstrap, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    with duckdb.connect(str(tmp_path / "board.duckdb"), read_only=True) as database:
        found = database.execute(changes).fetchall()
    expected = []
    for (name, key, series, tick), snapshot in items.items():
        for window in snapshot["windows"]:
            since = tick - window["ticks"]
            before = {}
            last = {}
            if since > 0:
                before = dict(items[name, key, series, since]["items"])
            elif since < 0:
                ended = name, key, snapshot["previous_id"]
                last = dict(items[*ended, EPOCH_TICKS]["items"])
                before = dict(items[*ended, EPOCH_TICKS + since]["items"])
            for label, count in snapshot["items"]:
                known = label in before and (since > 0 or label in last)
                if not since or known:
                    change = count + last.get(label, 0) - before.get(label, 0)
                    row = key, tick, window["ms"], label, change, window["sd"]
                    expected.append(row)
    assert sorted(found) == sorted(expected) and len(found) > 500
