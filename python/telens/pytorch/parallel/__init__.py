"""Parallelism over ranks: context, tensor and data parallelism, and random states."""
