"""Steps of PyTorch as programs."""
