"""The rooms of `workers/` and the imports between them, read from the code."""

import ast
from collections import Counter
from pathlib import Path

from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from bench.plots.style import BLUE, GREY, grid, save

PACKAGE = Path(__file__).parents[2] / "workers"


def imports() -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Return lines of code by room, and how many imports lead from one room to another."""
    lines: Counter[str] = Counter()
    arrows: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.glob("*/**/*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        text = path.read_text()
        lines[room] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "workers."
            ):
                other = str(node.module).split(".")[1]
                if other != room:
                    arrows[room, other] += 1
    return lines, arrows


def in_order(rooms: set[str], arrows: Counter[tuple[str, str]]) -> list[str]:
    """Return the rooms, each behind all that it imports.

    Raises:
        ValueError: some import each other in a circle.
    """
    order: list[str] = []
    while left := rooms - set(order):
        free = [r for r in left if all(to in order for of, to in arrows if of == r)]
        if not free:
            raise ValueError(f"rooms in a circle: {', '.join(sorted(left))}")
        order += sorted(free)
    return order


def draw(directory: Path) -> None:
    """Draw them from bottom to top, an arc for the imports of a room from another."""
    lines, arrows = imports()
    order = in_order(set(lines), arrows)
    figure, found = grid(1, 1, 7, 6)
    axes = found[0][0]
    widest = max(lines.values())
    for height, room in enumerate(order):
        width = 1.2 + 1.6 * lines[room] / widest
        box = FancyBboxPatch(
            (-width, height - 0.3),
            width,
            0.6,
            boxstyle="round,pad=0.05",
            facecolor="#EAF2F8",
            edgecolor=BLUE,
        )
        axes.add_patch(box)
        axes.text(
            -0.08,
            height + 0.08,
            room,
            ha="right",
            va="center",
            fontsize=10,
            weight="bold",
        )
        axes.text(
            -0.08,
            height - 0.19,
            f"{lines[room]:,} lines",
            ha="right",
            va="center",
            fontsize=7,
            color=GREY,
        )
    for (of, to), number in sorted(arrows.items()):
        begin = order.index(of)
        end = order.index(to)
        arc = FancyArrowPatch(
            (0.1, begin),
            (0.1, end),
            connectionstyle=f"arc3,rad={-0.9 if begin - end == 1 else -0.55}",
            arrowstyle="-|>",
            mutation_scale=7,
            linewidth=0.4 + min(number, 60) / 30,
            color=BLUE,
            alpha=0.55,
        )
        axes.add_patch(arc)
    axes.set_xlim(-3.0, 1.9)
    axes.set_ylim(-0.8, len(order) - 0.2)
    axes.set_axis_off()
    save(figure, "rooms", directory)
