"""Shared process infrastructure: errors, logs, metrics, progress lines, HTTP servers, limits.

Imports nothing else of the package. Start with `errors`: every message to an operator is one of its
exceptions. `frozen` enforces immutability of shared objects, `sizes` limits message lengths,
`gil_lock` serializes short GIL-bound work, `traces` sends spans.
"""
