"""Steps of JAX as programs."""
