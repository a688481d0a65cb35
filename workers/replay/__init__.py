"""Run past events through the pipeline without a worker: replay, backtest, report.

Imports `agents.topics`, `privacy`, `pipeline` and below. Start with `offline`. A source yields
batches of columns: `sources_lines` (JSON lines), `parquet`, `sources_topic`. `backtest` runs
combinations of settings and measures them against exact counts; `report` draws the result.
"""
