"""Rules that write JAX's primitives, by family."""
