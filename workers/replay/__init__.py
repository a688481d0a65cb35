"""Run past events through the pipeline without a worker: replay (`offline`), backtest, report.

Imports `agents.topics`, `privacy`, `pipeline` and below. Sources yield batches of columns:
`sources` (JSON lines), `parquet`, `sources_topic`. `report` draws the result of `backtest`.
"""
