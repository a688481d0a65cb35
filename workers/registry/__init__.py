"""Schemas by their ids, from a Schema Registry. Knows nothing of what they are about."""
