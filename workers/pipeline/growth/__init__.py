"""Partitions that topics get while workers run, and what joins or moves then.

sources   source partitions: how those of the events topics are numbered, and how new ones join
owners    owner partitions: which has a stream key, and how keys move to new ones
epochs    when either takes effect

Everything that knows how many partitions there are or were lives here; intake, merge and histogram
call it. Noticing growth, and waiting until every worker has, is `agents/growth.py`.
"""
