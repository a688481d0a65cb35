"""Quietcount: differentially private histograms of Kafka topics that stay up to date.

Each room imports only itself and those below it (`tests/test_imports.py`):

    commands                          what `quietcount` prints and asks
    dashboard, client                 the page; reading snapshots from Python
    replay, agents                    past events offline; the worker on Kafka
    privacy                           plan, ceiling, budget: what is promised and spent
    pipeline                          both stages without Kafka
    events, kafka                     records to columns; consumers, shards, transactions
    settings, mechanisms              the settings file; counters, noise, accounting
    arrays, runtime                   columns and compiled loops; errors, logs, metrics

An event's way through them is in the docstring of `workers.pipeline`.
"""
