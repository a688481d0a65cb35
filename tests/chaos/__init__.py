"""Faults on purpose: workers are ended at named steps and at random moments while events come in.

python -m tests.chaos --kills 1000 --seed 7 [--schedule FILE] [--brokers 3] [--directory D]

schedule    what happens when: drawn from a seed, printed as JSON lines, read again
worker      the process that ends itself at a named step of the product's own code
steps       the steps, as wrappers around the product's functions
faults      disks, clocks and brokers
oracle      what every tick must contain
segment     one worker name, its workers and their faults, and the checks at its end
figures     ends by step and kind, times to recover
"""
