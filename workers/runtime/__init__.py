"""What every process needs: errors, logs, metrics, progress lines, HTTP servers, limits.

Imports nothing else of the package. Start with `errors`: every message to an operator is an
exception from there. `frozen` holds what keeps shared objects immutable, `sizes` how long a message
may be, `gil_lock` the lock around short work that needs the interpreter.
"""
