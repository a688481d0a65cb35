"""Check copies of the snapshots against the signed ticks (`quietcount verify`)."""
