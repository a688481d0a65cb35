"""Privacy accounting: the guarantee, the spending so far, and the ceiling between them.

Start with `total`, the only place that composes costs of several histograms and epochs. `plan`
states the guarantee of settings before anything runs, `spending` that of published results;
`ceiling` stops a worker before any period exceeds its limit, `theorems` has the papers' error
bounds.
"""
