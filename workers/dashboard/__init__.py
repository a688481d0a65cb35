"""`quietcount dashboard`: a page and an HTTP API over the histogram topics.

Imports `client`, `pipeline`, `privacy`, `kafka` and `settings`. `feed` reads Kafka, `hub` sends
snapshots to viewers, `store` keeps the history in DuckDB, `ticks` finds a tick in memory or there,
`guard` checks requests, `api` answers, and `server` runs them all in a process or a thread. `page/`
is what the browser loads.
"""
