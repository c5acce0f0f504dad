"""Base classes of feature classes for the FP8 core."""
