"""`quietcount init`: from a sample of a topic to a settings file, with a reason for each guess."""
