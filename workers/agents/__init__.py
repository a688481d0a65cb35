"""The worker: Faust agents and their shards on Kafka.

Imports `pipeline`, `privacy`, `events`, `kafka` and below. Start with `worker`, which builds the
application from settings. `contribute` reads events and commits contributions, `rekey` forwards
events by user (`source_shard`: what both share); `release` merges contributions, adds noise and
publishes (a tick is committed in `ReleaseShard._release`); `rejects` queues dead letters. `topics`
checks the topics, `state` refuses settings that do not fit the stored state, `monitor` serves
health and metrics.
"""
