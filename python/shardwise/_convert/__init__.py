"""Converts checkpoints from one mesh or format to another."""
