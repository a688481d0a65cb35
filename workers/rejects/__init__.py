"""`quietcount rejects`: what was rejected, by reason, and how it is sent back."""
