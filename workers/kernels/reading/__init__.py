"""Loops that read events: scanners of each format, and what views see of what they log."""
