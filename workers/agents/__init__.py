"""The worker: Faust agents and their shards on Kafka.

Imports `pipeline`, `privacy`, `events`, `kafka` and below. Start with `worker`: from settings to a
running application. `contribute` reads events and commits contributions; `release` merges them,
adds noise and publishes (a tick is committed in `ReleaseShard._release`); `rekey` sends events on
by user; `rejects` queues dead letters. `topics` checks and creates topics, `state` refuses settings
that do not fit the stored state, `monitor` serves health and metrics.
"""
