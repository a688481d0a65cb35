"""Domain-independent Kafka: fetches, shards, transactions, state stores, topics.

Start with `shard`: one partition of one stage. `transport` takes fetched record batches from
aiokafka, `decoding` turns them into columns (`records`), `handover` opens and closes shards on
rebalances, `transaction` commits, `reading` reads topics to their end, `outages`
notices that Kafka is away.
"""
