"""Scanners of binary formats, and how records of a Schema Registry are framed."""
