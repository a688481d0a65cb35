"""Both stages without Kafka; worker, replay, audit and check share this code.

Imports `events`, `kafka` (records and readers), `mechanisms` and below. Start with `intake`
(stage 1) and `merge` (stage 2); `growth` has what changes with the number of partitions. The ten
forms of an event, from a fetch to a snapshot:

    1  fetched record batches   bytes, as the broker sent them             kafka.transport
    2  Records                  places of n values and keys in one buffer  kafka.decoding
    3  FieldSpans               spans of the wanted fields of n records    events.json, formats
    4  EventColumns             codes of stream keys and labels by view    events.source_reader
    5  Tally                    bounded counts by lane, tick, key, label   pipeline.tallies, users
    6  Section                  one tick's sums for one owner, with tags   pipeline.contributions
    7  Contributions            the same as arrays: keys, tags, counts     mechanisms.ledger
    8  Ledger                   running counts, one row per item           mechanisms.ledger
    9  Release                  a tick's output, with noise                mechanisms.mechanism
    10 Snapshot                 a JSON message, in pages if it is long     pipeline.snapshots
"""
