"""Compiled loops over bytes, events and rows: arrays in, arrays out, without the GIL."""
