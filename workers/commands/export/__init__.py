"""`quietcount export`: what the histogram topics hold, as files or as Iceberg tables.

export    reads the topics from where the last export ended, and cuts at whole snapshots
output    the state of an export, and the directory that it is in
files     CSV and Parquet: files, and a manifest with the state
iceberg   tables with a local catalogue
"""
