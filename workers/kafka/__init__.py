"""Domain-independent Kafka: fetches, shards, transactions, state stores, topics.

Start with `shard`: one partition of one stage. `transport` takes fetched record batches from
aiokafka, `decoding` turns them into columns (`records`), `handover` opens and closes shards on
rebalances, `transaction` commits, `reading` reads the worker's topics to their end,
`topic_reader` those of events for commands, `outages` notices that Kafka is away.
"""
