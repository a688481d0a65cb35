"""What views want of an event, as rows of numbers, and what becomes of it; `events.layout` makes
these rows, and the kernels of views read them.
"""

from __future__ import annotations

# What becomes of an event.
READ, SKIPPED = 0, 1
# The number of labels in a view that does not look at an event.
UNSEEN = -1

# Columns of `views`; COLUMN is the row of `columns` that says what its labels are.
VIEW_KEY, COLUMN, CONDITION, CONDITIONS_STOP = range(4)
VIEW_COLUMNS = 4
# Columns of `columns`.
ITEMS, ELEMENTS, COUNT, ONLY_LIST, BUCKETS, EDGE, EDGES_STOP = range(7)
COLUMN_COLUMNS = 7
# Columns of `conditions`, and what they ask.
FIELD, ASKS, FIRST, LAST = 0, 1, 2, 3
IN, NOT_IN, AT_LEAST, AT_MOST, EXISTS = 0, 1, 2, 3, 4
# Slots of a stream key or user that is no field.
NOWHERE, RECORD_KEY = -1, -2
