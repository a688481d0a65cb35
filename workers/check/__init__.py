"""`quietcount check`: what the settings would make of a sample of events; nothing is written."""
