"""`quietcount dashboard`: a page and an HTTP API over the histogram topics.

Imports `pipeline`, `privacy`, `kafka` and `settings`. `server` runs all parts in a process or a
thread: `feed` reads Kafka, `snapshots` joins pages, `hub` sends snapshots to viewers, `guard`
checks every request, `api` answers. `store` keeps the history in DuckDB.
"""
