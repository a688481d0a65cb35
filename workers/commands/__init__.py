"""Commands of `quietcount`: their output and questions; `cli` has their options.

May import every room. Only `cli` imports this room, and loads a command only when it runs, so that
`key` or `plan` start without Kafka or numba. `failures` turns a `SettingsError`, or any other
exception, into one line and an exit code. Larger commands are folders: `init`, `check`, `demo`.
"""
