"""Record formats with a Schema Registry: from bytes and a schema to an event log."""
