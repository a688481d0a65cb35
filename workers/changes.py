"""What a commit changes in a key-value store."""

from __future__ import annotations

# A key and its new value; None deletes it. Of two changes of one key the later one wins.
Change = tuple[bytes, bytes | None]
