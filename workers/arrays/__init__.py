"""Columns, and the compiled loops that several rooms use.

Imports `runtime`. Start with `compiled`: how a kernel (a loop over arrays that numba compiles to
run without the GIL) is compiled, cached and checked. `texts` is a column of texts, `tag_index`
finds the row of a 128-bit tag, `blake2b` hashes columns. A kernel that only one class calls lies
beside that class in its own room. Commands that count nothing never import `compiled`.
"""
