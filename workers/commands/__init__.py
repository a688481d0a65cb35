"""Commands of `quietcount`: their options, output and questions.

May import every room. Only `cli` imports this room, and loads a command only when it runs, so that
`key` or `plan` start without Kafka or numba. `printing` formats lines and tables,
`failures` turns exceptions into one line and an exit code. Larger commands are folders: `init`
(guesses settings from a sample), `check`, `demo`.
"""
