"""The blocks of a mechanism's state, stored and read back as an owner partition does."""

from collections.abc import Mapping

from workers.arrays.types import Tags
from workers.mechanisms.mechanism import Mechanism, State
from workers.pipeline import ledger_blocks


def store(state: State, stored: dict[str, bytes]) -> None:
    """Write what changed since the last call into the stored blocks."""
    stored |= dict(ledger_blocks.changes(state.ledger))
    state.ledger.clean()
    for name, block in state.changed():
        if block is None:
            del stored[name]
        else:
            stored[name] = block


def read_back(
    mechanism: Mechanism, blocks: Mapping[str, bytes], key_tags: Tags
) -> State:
    """Return the state in stored blocks, for stream keys with these tags."""
    state = mechanism.init()
    of_ledger: dict[str, bytes] = {}
    further: dict[str, bytes] = {}
    for name, block in sorted(blocks.items()):
        kind = of_ledger if name[0] in ledger_blocks.KINDS else further
        kind[name] = block
    state.ledger = ledger_blocks.load(of_ledger.items(), len(key_tags))
    state.key_tags = key_tags
    for name, block in further.items():
        state.restore(name, block)
    state.restored()
    return state
