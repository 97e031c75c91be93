"""Rules that write ATen operations, by family."""
