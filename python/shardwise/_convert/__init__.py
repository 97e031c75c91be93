"""Checkpoints from one mesh or format to another."""
