"""Events through a real broker: the worker, and what else counts them, on the same topic in the same run."""
