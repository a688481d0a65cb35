"""`quietcount dashboard`: a page and an HTTP API over the histogram topics, and nothing else.

Imports `pipeline`, `privacy`, `kafka` and `settings`. Start with `server`, which runs all parts, in
a process or a thread. `feed` reads Kafka, `snapshots` joins pages, `hub` sends them to viewers,
`guard` checks every request, `api` and `api_history` answer. `store` keeps what was read in DuckDB.
`page` has the HTML, CSS and JavaScript; `promise` the sentences about the guarantee.
"""
