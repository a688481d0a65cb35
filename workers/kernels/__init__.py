"""The loops that touch every event or row: arrays in, arrays out, compiled and without the GIL.

Commands that do not count never import numba. So the modules above import a kernel where they run
it, inside the function, and not when they are imported themselves; see `tests/kernels`.
"""
