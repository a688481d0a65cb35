"""Formats of records behind a Schema Registry: from bytes and a schema to the log of an event."""
