"""What settings promise and cost, from the configuration alone: without Kafka, key or data."""
