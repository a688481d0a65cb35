"""The loop of the lifted counter: rows from one place to a later one; see `lifted`."""

import numpy as np

from workers.arrays.compiled import kernel
from workers.arrays.types import Floats, Longs, Words
from workers.mechanisms.noise.normal import Numbers
from workers.mechanisms.noise.normal_loops import rough


@kernel
def descend(
    words: Words,
    table: Floats,
    total: int,
    steps: Longs,
    scales: Floats,
    state: Numbers,
    lefts: Longs,
    out: Longs,
) -> None:
    """Bring rows to a place.

    Args:
        words: (cells, n, 2).
        table: of `normal`.
        total: the total's cell; -1 where the level above is in the state.
        steps: (levels, 8), `Step` by level, finest first.
        scales: (levels + 1, 4): the node's standard deviation in units, of the next, of the last,
            of the one after the next; the total's.
        state: (kept + 2, n), read and written: r_1, r_2, ... of levels with a second block, and
            z_1 of the next two blocks.
        lefts: (n,), for the left ends.
        out: (n,), written: N, in units.
    """
    levels = len(steps)
    rows = len(out)
    after = len(state) - 2
    if total >= 0:
        for i in range(rows):
            lefts[i] = 0
            out[i] = np.int64(rough(words[total, i, 0], table) * scales[levels, 0])
    else:
        for i in range(rows):
            out[i] = state[levels, i]
    for level in range(levels - 1, -1, -1):
        scale = scales[level, 0]
        next_scale = scales[level, 1]
        last_scale = scales[level, 2]
        a = steps[level, 0]
        a_half = steps[level, 1]
        b = steps[level, 2]
        b_half = steps[level, 3]
        c = steps[level, 4]
        c_half = steps[level, 5]
        stored = steps[level, 6]
        goes_right = steps[level, 7]
        pair_scale = scales[level, 3]
        # From tick to tick: the first level and others, as short as they can be.
        if stored and a < 0 and b != -1 and not goes_right:
            if b >= 0:
                for i in range(rows):
                    node = np.int64(state[after, i])
                    beside = np.int64(rough(words[b, i, 0], table) * next_scale)
                    state[after + 1, i] = np.int64(
                        rough(words[b, i, 1], table) * pair_scale
                    )
                    right = out[i] - ((node + beside) >> 3)
                    out[i] = (np.int64(state[0, i]) + right + node) >> 1
                    state[0, i] = right
                    state[after, i] = beside
            else:
                for i in range(rows):
                    node = np.int64(state[after, i])
                    beside = np.int64(state[after + 1, i])
                    right = out[i] - ((node + beside) >> 3)
                    out[i] = (np.int64(state[0, i]) + right + node) >> 1
                    state[0, i] = right
                    state[after, i] = beside
            continue
        if stored and b >= 0 and level and not goes_right:
            for i in range(rows):
                node = np.int64(rough(words[a, i, a_half], table) * scale)
                beside = np.int64(rough(words[b, i, b_half], table) * next_scale)
                right = out[i] - ((node + beside) >> 3)
                left = np.int64(state[level, i])
                lefts[i] = left
                out[i] = (left + right + node) >> 1
                state[level, i] = right
            continue
        for i in range(rows):
            node = np.int64(state[after, i])
            if a >= 0:
                node = np.int64(rough(words[a, i, a_half], table) * scale)
            left = lefts[i]
            right = out[i]
            if b != -1:
                beside = np.int64(state[after + 1, i])
                if b >= 0:
                    beside = np.int64(rough(words[b, i, b_half], table) * next_scale)
                right -= (node + beside) >> 3
                if level == 0:
                    state[after, i] = beside
                    if b >= 0 and b_half == 0:
                        state[after + 1, i] = np.int64(
                            rough(words[b, i, 1], table) * pair_scale
                        )
            if stored:
                left = np.int64(state[level, i])
            elif c >= 0:
                before = np.int64(rough(words[c, i, c_half], table) * last_scale)
                left -= (node + before) >> 3
            if level < after:
                state[level, i] = right
            middle = (left + right + node) >> 1
            if goes_right:
                lefts[i] = middle
                out[i] = right
            else:
                lefts[i] = left
                out[i] = middle
