"""What is promised, what was spent, and the ceiling between them.

Imports `pipeline` (stored progress), `mechanisms`, `kafka` and `settings`. Start with `total`: the
one place where costs of several histograms and epochs are composed. `plan` states what settings
promise before anything runs, `spending` what was published so far, `ceiling` stops a worker before
any period exceeds its limit, `theorems` the error that each mechanism's paper promises.
"""
