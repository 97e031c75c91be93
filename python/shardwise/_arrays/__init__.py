"""Arrays and tensors as memory that the core reads and writes."""
