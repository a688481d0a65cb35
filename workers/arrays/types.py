"""Array types by element; docstrings state the shapes."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int32]  # also other 32-bit numbers
Longs = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
# The keyed 128-bit hashes of n rows as two words each: (n, 2).
Tags = Words
