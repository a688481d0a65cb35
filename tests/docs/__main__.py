"""Write the figures of README and docs: `python -m tests.docs --write`; without it, name those that differ."""

import argparse
import json

from tests import ROOT
from tests.broker import broker
from tests.docs.computed import COMPUTED, SENTENCES
from tests.docs.marked import places, rewritten, with_figures
from tests.docs.texts import DOCUMENTS
from workers.client.schema import snapshot_schema

SCHEMA = ROOT / "docs" / "snapshot.schema.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="Put them into the documents."
    )
    write = parser.parse_args().write
    differ = False
    with broker() as bootstrap:
        for document in DOCUMENTS:
            for place in [*places(document.read_text(encoding="utf-8"))]:
                if place.source != "computed":
                    continue
                text = COMPUTED[place.argument](bootstrap)
                if text != place.text:
                    differ = True
                    print(f"{document.relative_to(ROOT)}: {place.argument}")
                    if write:
                        rewritten(document, place.argument, text)
    text = json.dumps(snapshot_schema(), indent=2, ensure_ascii=False) + "\n"
    if not SCHEMA.exists() or SCHEMA.read_text(encoding="utf-8") != text:
        differ = True
        print(SCHEMA.relative_to(ROOT))
        if write:
            SCHEMA.write_text(text, encoding="utf-8")
    for name, sentence, figures in SENTENCES:
        document = ROOT / name
        old = document.read_text(encoding="utf-8")
        new = with_figures(old, sentence, figures())
        if new != old:
            differ = True
            print(f"{name}: {sentence}")
            if write:
                document.write_text(new, encoding="utf-8")
    return int(differ and not write)


raise SystemExit(main())
