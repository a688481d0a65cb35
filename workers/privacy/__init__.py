"""Privacy accounting: the guarantee, the spending so far, and the ceiling between them.

Imports `pipeline` (what was released), `mechanisms` and `settings`; no Kafka. Only `total` composes
costs of several histograms and epochs. `plan` computes the guarantee of settings before a run,
`spending` that of published results; `ceiling` limits every period; `model` has the
records that `plan` and `total` make.
"""
