"""Training steps as programs: the front ends of PyTorch and JAX."""
