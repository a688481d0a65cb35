"""`quietcount dashboard`: a page and an HTTP API over the histogram topics.

Imports `client`, `pipeline`, `privacy`, `kafka` and `settings`. `feed` reads Kafka, `hub` sends
snapshots to viewers, `guard` checks requests, `api` answers, `store` keeps the history in DuckDB,
and `server` runs them all in a process or a thread. `page/` is what the browser loads.
"""
