"""Kafka away for any time: noticed, said in two lines, waited for."""
