"""Writes programs as text and draws plans."""
