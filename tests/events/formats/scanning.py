"""What the scanners say of a batch that a reader has prepared, record by record."""

from __future__ import annotations

import numpy as np

from tests.events.formats.walking import Said, content, unordered
from workers.arrays.texts import readonly_contiguous
from workers.events.formats.reader import FormatReader, Prepared
from workers.events.log import DECLINED


def scanned(reader: FormatReader, prepared: Prepared) -> list[Said | None]:
    """Return what the log of each record says; None where the scanner declines or it is refused."""
    form, found = reader.form, list[Said | None]()
    log, number = np.empty((1_000, 4), dtype=np.int64), np.empty(1, dtype=np.int64)
    for i in range(len(prepared.roots)):
        values, roots = prepared.payloads[i : i + 1], prepared.roots[i : i + 1]
        scan = form.logs(
            prepared.data, readonly_contiguous(values), readonly_contiguous(roots), prepared.base
        )
        assert scan(0, number, log) == 1
        said = unordered(content(log[: max(int(number[0]), 0)], prepared.data))
        found.append(None if number[0] == DECLINED else said)
    return found
