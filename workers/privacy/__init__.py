"""Privacy accounting: the guarantee, the spending so far, and the ceiling between them.

Imports `pipeline` (stored progress), `mechanisms`, `kafka` and `settings`. Start with `total`, the
only place that composes costs of several histograms and epochs. `plan` has the guarantee of
settings before a run, `spending` that of published results, `ceiling` the enforced limit of every
period, `theorems` the error bounds of the papers.
"""
