"""The commands of `quietcount`: options, what each prints, and what it asks.

May import every room; nothing imports this one but `cli`, which loads a command only when it runs,
so that `key` or `plan` start without Kafka or numba. `printing` formats lines and tables,
`failures` turns exceptions into one line and an exit code. Larger commands are folders: `init`
(guesses settings from a sample), `check`, `rejects`, `demo`.
"""
