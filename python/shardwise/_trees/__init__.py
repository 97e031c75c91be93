"""Trees of Python: containers and objects as names, arrays and JSON."""
