"""The worker: Faust agents and their shards on Kafka.

Start with `worker`, which builds the application from settings. `contribute` reads events and
commits contributions, `rekey` forwards events by user (both: `source_shard`); `release` merges
contributions, adds noise and publishes. `topics`, `counted` and `state` check the topics and the
stored state (`progress` reads it), `keeping` deletes contributions that nothing needs, `growth`
notices new partitions, `ceiling_guard` asks what was spent, `monitor` serves health and metrics.
"""
