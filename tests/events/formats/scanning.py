"""What the scanners say of a batch that a reader has prepared, record by record."""

from __future__ import annotations

import numpy as np

from tests.events.formats.walking import Said, content, unordered
from workers.events.formats import avro_scanner, protobuf_scanner
from workers.events.formats.protobuf import ProtobufFormat
from workers.events.formats.reader import FormatReader, Prepared
from workers.events.log import DECLINED


def scanned(reader: FormatReader, prepared: Prepared) -> list[Said | None]:
    """Return what the log of each record says; None where the scanner declines or it is refused."""
    found: list[Said | None] = []
    form, log = reader.form, np.empty((1_000, 4), dtype=np.int64)
    for (start, stop), root in zip(
        prepared.payloads.tolist(), prepared.roots.tolist(), strict=True
    ):
        used = DECLINED
        place = (prepared.data, start, stop, root, prepared.base)
        if root == DECLINED:
            pass
        elif isinstance(form, ProtobufFormat):
            a = form.arrays
            used = protobuf_scanner.event(
                *place, a.messages, a.fields, a.missing, a.names, log, form.stack(), form.lists()
            )
        else:
            b = form.arrays
            used = avro_scanner.event(
                *place, b.program, b.parts, b.names, b.constants, log, form.stack()
            )
        found.append(None if used == DECLINED else unordered(content(log[:used], prepared.data)))
    return found
