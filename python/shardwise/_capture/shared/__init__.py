"""Writes functions that the front ends of PyTorch and JAX share, as operations of programs."""
