"""What the dashboard remembers: every snapshot it has read, in a DuckDB file.

schema      the tables
writing     adds snapshots, with the positions behind them
tidying     sorts and thins
following   reads Kafka
reading     which rows hold a stream's ticks
questions   answers as JSON
files       answers as CSV and Parquet
store       the thread that fills it, those that answer, and what happens when the file fails
"""
