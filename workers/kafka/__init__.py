"""Domain-independent Kafka: fetches, shards, transactions, state stores, topics.

Imports `settings`, `arrays` and `runtime`. Start with `shard`: one partition of one stage, with its
thread, offset, store and transactional producer. `transport` takes fetched record batches from
aiokafka, `decoding` turns them into columns (`records`), `handover` opens and closes shards on
rebalances, `transaction` commits (its states: `transaction_state`), `reading` reads topics to their
end.
"""
