"""Implements the emulated device of shardwise.torch.spmd, which records operations."""
