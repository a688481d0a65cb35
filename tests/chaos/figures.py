"""What a run amounts to: ends by step and kind, times to recover."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

from tests.chaos.schedule import KINDS
from tests.chaos.segment import Result
from tests.chaos.steps import BROKER


def figures(results: Iterable[Result]) -> Iterator[str]:
    """Yield lines: a row for each step, then times to recover, then sums."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    waits: dict[tuple[str, float], list[float]] = defaultdict(list)
    spoilt = Counter[str]()
    sums = Counter[str]()
    for result in results:
        spoilt.update(result.spoilt)
        sums.update(segments=1, events=result.events, ticks=result.ticks)
        sums.update(snapshots=result.snapshots, aborted=result.aborted)
        sums.update(rejected=result.rejected, ends=len(result.ends))
        for end in result.ends:
            counts[end.step][end.kind] += 1
            waits[end.kind, result.session_s] += end.recovered_s
            waits["disturbed", result.session_s] += end.disturbed_s
    counts["all"] = sum(counts.values(), Counter())
    kinds = [*KINDS, BROKER] if counts["all"][BROKER] else KINDS
    yield f"{'step':36}" + "".join(f"{kind:>7}" for kind in kinds)
    for step in sorted(counts, key=lambda step: (step == "all", step)):
        yield f"{step:36}" + "".join(f"{counts[step][kind]:7}" for kind in kinds)
    yield f"{'to the next commit':36}{'n':>6}{'median s':>10}{'99 % s':>9}{'worst s':>9}"
    for (kind, session_s), found in sorted(waits.items()):
        if found:
            middle = median(found)
            late = sorted(found)[len(found) * 99 // 100]
            what = f"{kind}, session {session_s:g} s"
            yield f"{what:36}{len(found):6}{middle:10.1f}{late:9.1f}{max(found):9.1f}"
    for what, number in sorted(spoilt.items()):
        yield f"{what:36}{number:6}"
    yield ", ".join(f"{number:,} {what}" for what, number in sums.items())
