"""Parts that the front ends of PyTorch and JAX share: functions made of the operations of programs."""
