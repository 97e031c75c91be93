"""Programs as text and as pictures."""
