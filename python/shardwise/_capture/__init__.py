"""Turns training steps of PyTorch and JAX into programs."""
