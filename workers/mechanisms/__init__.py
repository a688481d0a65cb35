"""The core: pure functions of configuration, state, one tick's contributions, and noise.

Imports `arrays` and `runtime`; no Kafka, clock, environment or log (`tests/test_imports.py`). Start
with `mechanism`, the protocol, then `running.base`, the default. `registry` names every
mechanism. Shared: `config` (what a histogram counts), `ledger` (item rows), `budget` and
`accounting` (privacy cost). Families, from the bottom up: `noise`, `counters`, `one_shot`,
`order_statistics`, `misra_gries`, `running`.
"""
