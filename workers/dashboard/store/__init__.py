"""History of the dashboard: every snapshot it has read, in a DuckDB file.

following   takes the records that the feed has read, and reads those before them
writing     the tables; adds snapshots with their positions; sorts and thins
queries     selects a stream's rows; answers as JSON, CSV and Parquet
store       the filling thread, the answering threads, and recovery when the file fails
"""
