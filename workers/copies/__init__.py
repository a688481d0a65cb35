"""Copies of state that is elsewhere: keys and values, in memory or on a disk."""
