"""The emulated device that shardwise.torch.spmd records on."""
