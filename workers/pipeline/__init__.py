"""Both stages without Kafka; worker, replay, audit and check share this code.

Imports `events`, `kafka` (records and readers), `mechanisms` and below. Start with `intake`
(stage 1) and `merge` (stage 2); `growth` has what changes with the number of partitions. The
forms of an event, from a fetch to a snapshot:

    fetched record batches   bytes, as the broker sent them             kafka.transport
    Records                  places of n values and keys in one buffer  kafka.decoding
    FieldSpans               logs of the wanted fields of n records     events.json, formats
    Reading                  keys and labels of n events, as spans      events.reading
    Events                   the same as EventColumns of codes          events.columns
    Tally                    bounded counts by lane, tick, key, label   pipeline.tallies, users
    TickSketches             the same in sketches, until the tick ends  pipeline.source_sketches
    Rows                     one tick's sums for one owner, with tags   pipeline.contributions
    Section                  the same in a message                      pipeline.contributions
    Contributions            the same as read: keys, tags, counts       mechanisms.ledger
    TickRows                 a tick's sums of all sources               mechanisms.ledger
    Ledger                   running counts, one row per item           mechanisms.ledger
    Release                  a tick's output, with noise                mechanisms.mechanism
    ReleasedTick             the same, and what a snapshot says of it   pipeline.snapshots
    Snapshot                 a JSON message, in pages if it is long     pipeline.snapshots

Kernels get these as named tuples of arrays, without a copy: Records as `Columns` (kafka.records),
FieldSpans and Reading as `Logs` and `Spans` (events.views), Events, Tally and Rows as
`LabeledEvents`, `Table` and `LabelRows` (arrays.tallies), events of users as `Batch`
(pipeline.users). Re-keying has two forms of its own (agents.rekey): `UserRows`, the users of a part
of a batch, and `ForwardBatch`, the records that it sends on.
"""
