"""The most bytes that a message may have, in one place; and cutting by bytes to stay below it.

    VALUE     900,000    of a value: every encoder cuts its pages, blocks and parts below this
    MESSAGE   990,000    of a key, a value and headers together; `Shard.transact` refuses more
                         before it sends anything
    BATCH   1,000,000    of the record batch a message is in; what topics must take
    TOPIC   1,048,588    what topics are created with: Kafka's own default for max.message.bytes

Kafka limits *batches*. librdkafka adds a message to a batch that holds another one only while the
batch stays below `batch.size`, with all that the protocol adds (`Shard` sets it to BATCH), and
compresses only where that makes the batch shorter. A message alone in its batch has 61 bytes of the
batch's before it and at most 60 of its own beside key, value and headers: far less than BATCH -
MESSAGE.

What is written, and why it stays within MESSAGE: a label or stream key has at most LABEL_BYTES_MAX
= 1,024 bytes, six times that in JSON (a control character is one byte and six characters). So the
smallest thing that cannot be cut (a row, a key, an item) has at most 2 * 6 * 1,024 + 200 bytes, and
whatever is a list of such things is cut between them.

    message               cut by                                    where
    contributions         rows, then stream keys                    pipeline/contributions.py
    snapshots, answers    items, labels, answers and their lists    histogram/{snapshots,answers}.py
    ledger, labels        rows                                      pipeline/ledger_blocks.py
    ledger, counts        1,024 rows of 8 bytes                     pipeline/ledger_blocks.py
    stream keys           keys                                      pipeline/ledger_blocks.py
    mechanisms' state     bytes, rows or stream keys                mechanisms/*/*state.py, pay.py
    users' pairs          rows of 28 bytes                          pipeline/users.py
    progress              bytes                                     pipeline/ledger_blocks.py
    rejects               bytes: the record is kept up to there     agents/contribute.py

What a commit changes in a key-value store.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# A key and its new value; None deletes it. Of two changes of one key the later one wins.
Change = tuple[bytes, bytes | None]


VALUE_BYTES = 900_000
MESSAGE_BYTES = 990_000
BATCH_BYTES = 1_000_000
TOPIC_BYTES = 1_048_588


def cuts(sizes: ArrayLike, room: int) -> list[tuple[int, int]]:
    """Return where to cut a list so that each part fits: (start, stop) of the parts, in order.

    Each part takes as much as fits, so what is in it depends on nothing behind it: a list that
    grows changes its last part only.

    Args:
        sizes: bytes of each element, none of them above `room`.
        room: most bytes of a part.
    """
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    found, start, taken = [], 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, taken + room, side="right")))
        found.append((start, stop))
        start, taken = stop, int(ends[stop - 1])
    return found
