"""Privacy accounting: the guarantee, the spending so far, and the ceiling between them.

Imports `pipeline` (stored progress), `mechanisms`, `kafka` and `settings`. Start with `total`, the
only place that composes costs of several histograms and epochs. `plan` states the guarantee of
settings before anything runs, `spending` that of published results. `ceiling` stops a worker before
any period exceeds its limit. `theorems` has the error bounds of each mechanism's paper.
"""
