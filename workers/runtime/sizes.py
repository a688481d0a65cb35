"""Limits of message sizes, and splitting by bytes to stay below them.

    VALUE     900,000    bytes of a value: every encoder cuts its pages, blocks and parts below this
    MESSAGE   990,000    of key, value and headers: `kafka.transaction` refuses more before it sends
    BATCH   1,000,000    of the record batch of a message; topics must accept it
    TOPIC   1,048,588    of new topics: Kafka's own default for max.message.bytes

Kafka limits *batches*. librdkafka adds a message to a non-empty batch only while the batch stays
below `batch.size`, overhead included (`kafka.transaction` sets it to BATCH), and compresses only if
that makes the batch shorter. A message alone in its batch has at most 121 bytes beside key, value
and headers: far less than BATCH - MESSAGE.

Every message stays within MESSAGE. A label or stream key has at most LABEL_BYTES_MAX = 1,024 bytes,
six times that in JSON (a control character), so the smallest indivisible element (a row, key or
item) has at most 2 * 6 * 1,024 + 200 bytes. Encoders in `pipeline` and `mechanisms` cut lists
between elements; `pipeline/rejected.py` truncates records.
"""

import numpy as np
from numpy.typing import ArrayLike

# A key and its new value; None deletes it. Of two changes of one key the later wins.
Change = tuple[bytes, bytes | None]

VALUE_BYTES = 900_000
MESSAGE_BYTES = 990_000
BATCH_BYTES = 1_000_000
TOPIC_BYTES = 1_048_588


def split_by_size(sizes: ArrayLike, capacity: int) -> list[tuple[int, int]]:
    """Split consecutive `sizes` into parts (start, stop), each of at most `capacity` in sum.

    A size beyond it makes a part of its own.
    """
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    parts = []
    start = 0
    # The sum of the parts so far.
    done = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + capacity, side="right")))
        parts.append((start, stop))
        start = stop
        done = int(ends[stop - 1])
    return parts
