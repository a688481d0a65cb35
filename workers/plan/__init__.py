"""What settings promise and cost before anything runs: computed from the configuration alone, without Kafka, key or data."""
