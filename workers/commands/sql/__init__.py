"""`quietcount sql`: questions about an export, with views that any DuckDB runs (`views/`)."""
