"""Gives the core the memory of arrays and tensors to read and write."""
