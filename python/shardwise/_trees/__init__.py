"""Turns trees of Python containers and objects into names, arrays and JSON, and back."""
