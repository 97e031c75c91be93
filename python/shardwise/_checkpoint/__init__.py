"""Saves, opens, edits, loads, verifies and compares one checkpoint."""
