from __future__ import annotations

from tests.bounds.search import Cell
from tests.bounds.shapes import Shape

WORST: list[tuple[Cell, Shape]] = []
