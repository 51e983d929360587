"""Datasets as memory-mapped tensors, and the ways to share one out between clients."""
