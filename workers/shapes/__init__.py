"""How events are shaped: paths to their fields, and conditions on them."""
